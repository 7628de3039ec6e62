"""What our trainer costs beside loops without it, in turn in the same processes.

Both sides train the same model from the same weights on the same batches: their first epochs'
losses agree. A rank has one thread. What is compared is throughput; a pair of epochs gives one
ratio, and its median and 95 % interval are in the extra information: by the wall, which whatever
else the machine does blurs, and by processor time, all ranks together.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.plan import ParallelPlan
from tests.performance.launch import run_ranks
from tests.performance.overhead_cases import CASES
from tests.performance.pairing import rounded_interval

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.mark.timeout(600)  # on a machine that others use too
@pytest.mark.parametrize("name", CASES)
def test_trainer_overhead(benchmark: Any, tmp_path: Path, name: str) -> None:
    if name == "bert-transformers":
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")
    case, found = CASES[name], list[dict[str, Any]]()
    ranks = ParallelPlan.parse(case.plan).ranks

    def whole() -> None:
        found.extend(run_ranks("tests.performance.overhead_worlds", tmp_path, ranks, name))

    benchmark.pedantic(whole, rounds=1, iterations=1)

    ours, theirs = ([rank[side] for rank in found] for side in ("ours", "theirs"))
    losses = [rank["loss"] for rank in theirs if rank["loss"] is not None]
    assert statistics.mean(losses) == pytest.approx(ours[0]["loss"], rel=1e-4)
    wall = _ratios([ours[0]["wall_s"]], [theirs[0]["wall_s"]])
    processor = _ratios(*([rank["processor_s"] for rank in side] for side in (ours, theirs)))
    benchmark.extra_info |= {
        "throughput over theirs, median and interval": rounded_interval(wall),
        "the same by processor time": rounded_interval(processor),
        "at least": case.least,
        "pairs": len(wall),
    }


def _ratios(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    """Return how many times as fast ours was in each pair, from seconds of ranks: [rank][pair]."""
    sums = (map(sum, zip(*side, strict=True)) for side in (theirs, ours))
    return [theirs_s / ours_s for theirs_s, ours_s in zip(*sums, strict=True)]
