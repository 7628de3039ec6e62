"""A checkpoint saved under one plan is whole under every other."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from hybridperf.log.chain import SUMS
from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.checkpoint import (
    CheckpointError,
    TrainingProgress,
    load_checkpoint,
    save_checkpoint,
)
from hybridperf_reference.engine.optim import build_optimizer
from tests.engine.checkpoint_worlds import CASES, MODELS, PLANS, STEPS, main
from tests.engine.families import FAMILIES
from tests.engine.ranks import start_ranks, wait_for_ranks
from tests.tiers import in_tiers, plan_facts, selected

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.tiers import Fact


def facts(pair: tuple[str, int, int]) -> set[Fact]:
    family, *numbers = pair
    plans = [ParallelPlan.parse(PLANS[family][number]) for number in numbers]
    if 0 not in numbers and any(plan.cp > 1 or plan.tensor != "1d" for plan in plans):
        return set()  # to one process and back is in both tiers
    sides = zip(("saved", "under"), map(plan_facts, plans), strict=True)
    return {("family", family), *((side, fact) for side, own in sides for fact in own)}


PAIRS = in_tiers(
    [(family, saved, under) for family, under in CASES for saved in range(len(PLANS[family]))],
    facts,
    always=[
        *[("resnet", 0, 0), ("vit", 0, 0), ("vit", 0, 3), ("vit", 3, 0)],  # one process
        *[("vit", 0, 6), ("vit", 6, 0), ("vit", 0, 7), ("vit", 7, 0), ("vit", 0, 8), ("vit", 8, 0)],
        ("bert_tied", 0, 2),  # the last stage finds its copy's moments under the first's name
        *[("vit", 0, 9), ("vit", 9, 0)],  # to cp and back
    ],
)
# AdamW magnifies rounding of small gradients.
RELATIVE = 1e-5


@dataclass
class State:
    """What the ranks of a plan hold together."""

    tensors: dict[str, Tensor]
    loss: float | None

    def assert_equals(self, other: State) -> None:
        assert self.tensors.keys() == other.tensors.keys()
        for name, value in other.tensors.items():
            assert torch.equal(self.tensors[name], value), name

    def assert_close(self, other: State) -> None:
        assert self.loss == pytest.approx(other.loss, rel=1e-5)
        for name, value in other.tensors.items():
            if "key.bias" in name:  # softmax makes its gradient zero, but for rounding
                continue
            error = (self.tensors[name].float() - value).norm()
            assert error <= RELATIVE * value.norm(), f"{name}: {error / value.norm():.1e}"


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run one world of each size, all at once, and return what they left."""
    folder = tmp_path_factory.mktemp("checkpoints")
    pairs = [
        (each["family"], each["saved"], each["under"])
        for each in selected(request)
        if "saved" in each
    ]
    worlds = [
        start_ranks(ranks, main, folder, pairs, output=folder / f"{ranks}.txt")
        for ranks in (1, 2, 4, 8)
    ]
    wait_for_ranks(worlds)
    return folder


def read(folder: Path, name: str, ranks: int) -> list[State]:
    """Return the states that ranks noted under ``name``, those of all ranks put together."""
    parts: list[tuple[dict[str, Any], ...]] = [
        torch.load(folder / f"{name}_rank_{rank}.pt", weights_only=True) for rank in range(ranks)
    ]
    states = []
    for of_ranks in zip(*parts, strict=True):
        tensors: dict[str, Tensor] = {}
        for part in of_ranks:
            assert part["steps"] in STEPS
            for key, value in (part["weights"] | part["moments"]).items():
                assert torch.equal(tensors.setdefault(key, value), value), f"replicas differ: {key}"
        states.append(State(tensors, of_ranks[0].get("loss")))
    return states


def ranks_of(family: str, number: int) -> int:
    return ParallelPlan.parse(PLANS[family][number]).ranks


@pytest.mark.parametrize(("family", "saved", "under"), PAIRS)
def test_every_plan_resumes_from_the_checkpoint_of_every_other(
    folder: Path, family: str, saved: int, under: int
) -> None:
    before, after = read(folder, f"{family}_{saved}", ranks_of(family, saved))

    loaded, *resumed = read(folder, f"{family}_{saved}_as_{under}", ranks_of(family, under))

    loaded.assert_equals(before)
    assert len(resumed) == (saved == under or not MODELS[family].batch_norm)
    for state in resumed:
        if saved == under:
            state.assert_equals(after)
            assert state.loss == after.loss
        else:
            state.assert_close(after)


@pytest.mark.parametrize(("family", "number"), CASES)
def test_a_checkpoint_is_whole_when_any_rank_has_saved_it(
    folder: Path, family: str, number: int
) -> None:
    for rank in range(ranks_of(family, number)):
        saved, _ = torch.load(folder / f"{family}_{number}_rank_{rank}.pt", weights_only=True)
        assert saved["whole"], f"rank {rank} found no {SUMS}"


def test_a_checkpoint_of_another_model_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.\S+ of this model, found none: it is of an"):
        _load(folder / "resnet_0", "vit")


def test_damage_found_by_one_rank_is_raised_on_all(folder: Path) -> None:
    told = [(folder / f"damaged_rank_{rank}.txt").read_text() for rank in (0, 1)]

    assert told[0] == told[1]
    assert "/damaged/__1_0.distcp: expected a file with SHA-256 " in told[0]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of one process."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoint"
    stage = Stage(FAMILIES["resnet"].chain().units)
    optimizer = build_optimizer(stage, FAMILIES["resnet"].task().optimizer)
    save_checkpoint(folder, stage, optimizer, TrainingProgress("dp=1", 1, 0, 0, 1.0, 0))
    return folder


def _load(folder: Path, family: str = "resnet") -> None:
    stage = Stage(FAMILIES[family].chain().units)
    optimizer = build_optimizer(stage, FAMILIES[family].task().optimizer)
    load_checkpoint(folder, stage, optimizer)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def _swap(path: Path) -> None:
    other = path.with_name("progress.json" if path.name != "progress.json" else ".metadata")
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


@pytest.mark.parametrize("damage", [_flip, _cut, _swap, os.remove])
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "progress.json", "SHA256SUMS"])
def test_a_damaged_file_is_named(
    saved: Path, tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(saved, folder)
    _load(folder)

    damage(folder / name)

    with pytest.raises(CheckpointError) as refusal:
        _load(folder)
    message = str(refusal.value)
    named = name if damage is not _swap else ""
    assert message.startswith(f"{folder}/{named}" if name != "SHA256SUMS" else str(folder)), message
    assert ": expected " in message
    assert message.endswith("; resume from another checkpoint or train from the beginning")
    assert "\n" not in message


def test_checksums_are_in_the_format_of_sha256sum(saved: Path) -> None:
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=saved, check=False)

    assert checked.returncode == 0


def test_a_tensor_of_another_shape_is_refused_by_name(saved: Path) -> None:
    stage = Stage(FAMILIES["resnet"].chain().units)
    name, parameter = next(iter(stage.named_parameters()))
    parameter.data = torch.zeros(1, *parameter.shape)
    optimizer = build_optimizer(stage, FAMILIES["resnet"].task().optimizer)

    with pytest.raises(CheckpointError, match=rf"expected model\.{name} of shape \[1, "):
        load_checkpoint(saved, stage, optimizer)
