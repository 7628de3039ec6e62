"""How fast chains are cut into stages, and how well: beside torchgpipe's block partition.

`minimax` is exact; torchgpipe's (Bárány and Grinberg 2015) is a heuristic. What is compared is
processor time, in turn, and the largest stage.
"""

from __future__ import annotations

import random
import statistics
import time
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.projection.partition import minimax, stage_cuts
from hybridperf.projection.units import UnitCounts

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 20
UNITS, STAGES = 1_000, 64
MOST_MINIMAX_S = 0.1  #: of a chain of so many, on a busy machine: a tenth of this on an idle one
MOST_AMPA_S = 10.0


def test_minimax_of_1000_units_and_64_stages(benchmark: Any) -> None:
    solve = pytest.importorskip("torchgpipe.balance.blockpartition").solve
    ours_s, theirs_s, larger = list[float](), list[float](), list[float]()
    chains = (random.Random(seed) for seed in range(ROUNDS + 1))

    def pair() -> None:
        draw = next(chains)
        costs = [draw.randint(1, 10**6) for _ in range(UNITS)]
        seconds, blocks = _timed(lambda: solve(list(costs), STAGES))
        theirs_s.append(seconds)
        seconds, cuts = _timed(lambda: minimax(costs, STAGES))
        ours_s.append(seconds)
        sums = [0, *accumulate(costs)]
        largest = max(sums[last] - sums[first] for first, last in pairwise((0, *cuts, UNITS)))
        larger.append(max(map(sum, blocks)) / largest - 1)

    benchmark.pedantic(pair, rounds=ROUNDS, iterations=1, warmup_rounds=1)

    assert min(larger) >= 0, "the exact partition is never worse"
    assert statistics.median(ours_s) <= MOST_MINIMAX_S
    ratios = [ours / theirs for ours, theirs in zip(ours_s, theirs_s, strict=True)]
    benchmark.extra_info["ms, median"] = round(1e3 * statistics.median(ours_s), 2)
    benchmark.extra_info["time over torchgpipe's, median"] = round(statistics.median(ratios), 2)
    benchmark.extra_info["torchgpipe's largest stage is larger by, median and most"] = [
        f"{statistics.median(larger):.1%}",
        f"{max(larger):.1%}",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "pp=16,microbatches=32",
        "pp=16,schedule=gpipe,microbatches=32",
        "pp=8,schedule=interleaved,microbatches=32",
        "pp=8,schedule=zbv,microbatches=32",
    ],
)
def test_ampa_of_60_units_and_16_stages(benchmark: Any, text: str) -> None:
    draw = random.Random(text)
    units = [UnitCounts(f"u{n}", draw.randint(1, 10**6), (), 1, 1) for n in range(60)]
    plan = ParallelPlan.parse(f"{text},cut=ampa")
    took_s = list[float]()

    def cut() -> None:
        seconds, cuts = _timed(lambda: stage_cuts(plan, units))
        assert len(cuts) == 15
        took_s.append(seconds)

    benchmark.pedantic(cut, rounds=1, iterations=1, warmup_rounds=0)

    assert took_s[0] <= MOST_AMPA_S
    benchmark.extra_info["processor time, s"] = round(took_s[0], 2)


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start_s = time.process_time()
    result = call()
    return time.process_time() - start_s, result
