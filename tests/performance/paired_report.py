"""Run a comparison, make sure that both sides compute the same, and report how long each takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.engine.compare import assert_close, merged
from tests.performance.launch import run_ranks
from tests.performance.paired_cases import CASES
from tests.performance.pairing import rounded_interval

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["run_comparison"]

_RANKS = 2
_RELATIVE = 1e-5  # sums of fp32 in another order


def run_comparison(benchmark: Any, folder: Path, name: str) -> None:
    """Run the case ``name``; the times are in the extra information, and nothing is asked of them.

    Raises:
        AssertionError: if the sides' gradients differ, or their weights where they should agree.
    """
    case, found = CASES[name], list[dict[str, Any]]()

    def whole() -> None:
        found.extend(run_ranks("tests.performance.paired_worlds", folder, _RANKS, name))

    benchmark.pedantic(whole, rounds=1, iterations=1)

    kept = [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(_RANKS)]
    ours, theirs = ([rank[side] for rank in kept] for side in ("ours", "theirs"))
    gradients, expected = merged(ours, "gradients"), merged(theirs, "gradients")
    assert any(gradient.any() for gradient in expected.values())
    assert_close(f"{name}, gradients", gradients, expected, _RELATIVE)
    weights = merged(ours, "weights"), merged(theirs, "weights")
    if case.after_an_epoch == "same":
        assert_close(f"{name}, weights", *weights, _RELATIVE)
    else:
        with pytest.raises(AssertionError, match="relative error"):
            assert_close(name, *weights, 100 * _RELATIVE)
    wall, processor = (_time_ratios(found, kind) for kind in ("wall_s", "processor_s"))
    benchmark.extra_info |= {
        "time over theirs by the wall, median and interval": rounded_interval(wall),
        "the same by processor time, all ranks": rounded_interval(processor),
        "pairs": len(wall),
    }
    if case.most is not None:
        benchmark.extra_info["at most, by processor time"] = case.most


def _time_ratios(found: Sequence[dict[str, Any]], kind: str) -> list[float]:
    """Return our time over theirs in each pair of epochs, of all ranks together."""
    ours, theirs = (
        [sum(seconds) for seconds in zip(*(rank[side][kind] for rank in found), strict=True)]
        for side in ("ours", "theirs")
    )
    return [own_s / other_s for own_s, other_s in zip(ours, theirs, strict=True)]
