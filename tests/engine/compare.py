"""Start a world of ranks, and compare what they have with what one process computed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from hybridperf.plan import ParallelPlan
from tests.engine.families import EVALUATED, FAMILIES
from tests.engine.odd_models import ODD
from tests.engine.one_process import NARROW, expected
from tests.engine.ranks import run_ranks
from tests.engine.worlds import run_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Sums of numbers in another order, each a rounding away: some 80 roundings of fp32. Under bf16 and
# fp16 activations are rounded too, and tp adds up other ones: 16 roundings of theirs.
RELATIVE = {torch.float32: 1e-5, torch.float64: 1e-12}
ROUNDINGS = 16


def run_world(folder: Path, ranks: int, items: Mapping[int, str]) -> None:
    """Run each of ``items``, by number a family and plan as ``vit:dp=2``, on ``ranks`` ranks."""
    run_ranks(ranks, run_all, folder, items, output=folder / "printed.txt")


def found(folder: Path, ranks: int, number: int) -> list[dict[str, Any]]:
    """Return what each rank has after an item."""
    paths = [folder / f"item_{number}_rank_{rank}.pt" for rank in range(ranks)]
    tensors = [torch.load(path, weights_only=True) for path in paths]
    return [has | rest for has, rest in zip(tensors, told(folder, ranks, number), strict=True)]


def told(folder: Path, ranks: int, number: int) -> list[dict[str, Any]]:
    """Return what each rank has after an item besides tensors."""
    paths = [folder / f"item_{number}_rank_{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) for path in paths]


def assert_computed(item: str, parts: Sequence[dict[str, Any]], slack: float = 1.0) -> None:
    """Make sure that the ranks have what one process has, and that all have the same.

    Errors may be ``slack`` times as large as between processors.
    """
    family, _, text = item.partition(":")
    plan = ParallelPlan.parse(text)
    one, relative = expected(family, plan), slack * RELATIVE[(FAMILIES | ODD)[family].dtype]
    if not plan.equivalent:  # else the test could not tell whether anything was rounded
        with pytest.raises(AssertionError, match="relative error"):
            assert_close(item, merged(parts, "gradients"), one["gradients"], relative)
    narrow = {NARROW[each] for each in (plan.precision, plan.gradients) if each in NARROW}
    if narrow:
        relative = ROUNDINGS * max(torch.finfo(dtype).eps for dtype in narrow)
    assert_close(item, merged(parts, "gradients"), one["gradients"], relative)
    assert_close(item, merged(parts, "weights"), one["weights"], relative)
    assert len({part["quality"] for part in parts}) == 1, "every rank sees the same quality"
    assert abs(parts[0]["quality"] - one["quality"]) <= 2 / EVALUATED
    statistics = parts[0]["statistics"]
    for part in parts:  # a timeline is that of the rank's own pipeline
        assert part["statistics"] | {"timeline": statistics["timeline"]} == statistics
    relative = max(relative, 1e-6)  # of what is added up in fp32
    assert statistics["loss"] == pytest.approx(one["loss"], rel=relative)
    assert statistics["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=relative)
    assert statistics["losses_not_finite"] == 0


def assert_close(
    item: str, actual: dict[str, Tensor], expected: dict[str, Tensor], relative: float
) -> None:
    """Compare each tensor by the norm of its error, relative to its own norm.

    Or to a thousandth of all tensors' norm, where its own is less: some gradients, such as that of
    a key's bias, are zero but for rounding.
    """
    assert actual.keys() == expected.keys()
    norms = {name: value.double().norm().item() for name, value in expected.items()}
    least = sum(norm**2 for norm in norms.values()) ** 0.5 / 1000
    for name, value in expected.items():
        error = (actual[name].double() - value.double()).norm().item() / max(norms[name], least)
        assert error <= relative, f"{item}: {name}: relative error {error:.2e}"


def merged(parts: Sequence[dict[str, Any]], kind: str) -> dict[str, Tensor]:
    """Put stages together, having made sure that ranks that hold the same agree to the bit."""
    whole: dict[str, Tensor] = {}
    for part in parts:
        for name, value in part[kind].items():
            assert torch.equal(whole.setdefault(name, value), value), f"ranks differ in {name}"
    return whole
