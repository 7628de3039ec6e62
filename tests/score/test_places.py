"""Places count the decisions of all pairs, without making them all."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from hybridperf.score import ranking
from hybridperf.score.ranking import ALPHA, faster_and_slower
from hybridperf.score.statistics import Estimate, estimate, welch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def _faster(one: Estimate | None, other: Estimate | None) -> bool:
    """Tell whether ``one`` is faster, as `hybridperf.score.ranking.decide` says."""
    test = welch(other, one)
    return test is not None and test.p_value < ALPHA and test.t < 0


def _drawn(count: int, seed: int, *, spread: float = 0.05) -> list[Estimate | None]:
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        mean = draw.uniform(10, 11) if draw.random() < 0.7 else draw.uniform(10, 40)
        noise = mean * spread * draw.choice([0.0, 0.1, 1.0, 3.0])
        runs = draw.choice([1, 2, 5, 5, 5, 10])
        found.append(estimate([max(0.1, draw.gauss(mean, noise)) for _ in range(runs)]))
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 131])
def test_every_pair_is_counted_as_it_is_decided(count: int, seed: int) -> None:
    results = _drawn(count, seed)

    found = faster_and_slower(results, ALPHA)

    assert found == [
        (
            sum(_faster(other, one) for other in results if other is not one),
            sum(_faster(one, other) for other in results if other is not one),
        )
        for one in results
    ]


def test_equal_times_and_means_on_the_edge_are_ties() -> None:
    same, still = estimate([10.0, 11.0]), estimate([9.0, 9.0])

    assert faster_and_slower([same] * 5, ALPHA) == [(0, 0)] * 5
    assert faster_and_slower([still] * 5, ALPHA) == [(0, 0)] * 5


@pytest.mark.parametrize("spread", [0.05, 0.0005])
def test_twice_as_many_results_take_far_less_than_four_times_the_work(
    monkeypatch: pytest.MonkeyPatch, spread: float
) -> None:
    compared, verdicts = [0], ranking._verdicts

    def counted(
        one: tuple[NDArray[np.float64], NDArray[np.float64], float], *more: object
    ) -> object:
        compared[0] += len(one[0])
        return verdicts(one, *more)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(ranking, "_verdicts", counted)
    work = []
    for count in (1000, 2000, 4000):
        compared[0] = 0
        draw = random.Random(count)
        means = [draw.uniform(10, 20) for _ in range(count)]
        runs = [[draw.gauss(mean, mean * spread) for _ in range(5)] for mean in means]
        faster_and_slower([estimate(each) for each in runs], ALPHA)
        work.append(compared[0])

    assert work[1] < 3.2 * work[0]
    assert work[2] < 3.2 * work[1]
    assert work[2] < 4000 * 4000 / 4
