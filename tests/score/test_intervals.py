"""Intervals cover what they say: by simulation, seeded."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.score.statistics import (
    MEAN_INTERVAL,
    OLYMPIC_INTERVAL,
    estimate,
    mean_interval,
    ratio_interval,
    welch,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SPREAD: Final = 0.15  #: standard deviation over mean


def _normal(seed: int) -> Callable[[], float]:
    random_ = random.Random(seed)
    return lambda: random_.gauss(1.0, SPREAD)


def _lognormal(seed: int) -> Callable[[], float]:
    """Return draws of mean 1."""
    random_, sigma = random.Random(seed), math.sqrt(math.log(1 + SPREAD**2))
    return lambda: math.exp(random_.gauss(-(sigma**2) / 2, sigma))


DRAWS: Final = pytest.mark.parametrize("draws", [_normal, _lognormal])


@DRAWS
@pytest.mark.parametrize("runs", [5, 10])
def test_the_interval_of_a_mean_covers_93_to_97_per_cent(
    draws: Callable[[int], Callable[[], float]], runs: int
) -> None:
    draw, times, covered = draws(runs), 1000, 0

    for _ in range(times):
        interval = mean_interval(estimate([draw() for _ in range(runs)]))
        assert interval is not None
        covered += interval.low <= 1 <= interval.high

    assert 0.93 <= covered / times <= 0.97


@pytest.mark.parametrize("runs", [5, 10])
def test_the_interval_of_an_olympic_mean_covers_93_to_97_per_cent(runs: int) -> None:
    draw, times, covered = _normal(runs + 1), 1000, 0

    for _ in range(times):
        interval = mean_interval(estimate([draw() for _ in range(runs)], 1))
        assert interval is not None
        covered += interval.low <= 1 <= interval.high

    assert 0.93 <= covered / times <= 0.97


@DRAWS
@pytest.mark.parametrize(("runs", "others", "ratio"), [(5, 5, 1.3), (5, 10, 1.0), (10, 10, 1.3)])
def test_the_interval_of_a_ratio_covers_93_to_97_per_cent(
    draws: Callable[[int], Callable[[], float]], runs: int, others: int, ratio: float
) -> None:
    draw, times, covered = draws(runs), 600, 0

    for nth in range(times):
        one = estimate([draw() for _ in range(runs)])
        other = estimate([ratio * draw() for _ in range(others)])
        test = welch(one, other, ratio)
        assert test is not None
        covered += test.p_value >= 0.05  # the interval holds the ratios that pass the test
        if nth < 5:
            interval = ratio_interval(one, other)
            assert interval is not None
            assert (interval.low <= ratio <= interval.high) == (test.p_value >= 0.05)

    assert 0.93 <= covered / times <= 0.97


@pytest.mark.parametrize("drops", [0, 1])
def test_there_is_no_interval_below_five_runs_and_that_is_said(drops: int) -> None:
    assert mean_interval(estimate([1.0, 2.0, 3.0, 4.0], drops)) is None
    assert mean_interval(estimate([1.0, 2.0, 3.0, 4.0, 5.0], drops)) is not None
    for method in (MEAN_INTERVAL, OLYMPIC_INTERVAL):
        assert "none for fewer than 5 runs" in method


def test_a_dropped_value_may_be_infinite_and_a_kept_one_not() -> None:
    one = estimate([1.0, 2.0, 3.0, 4.0, math.inf], 1)

    assert one is not None
    assert one.mean == 3.0
    assert estimate([1.0, 2.0, 3.0, math.inf, math.inf], 1) is None
    assert estimate([1.0]) is None


def test_a_time_is_not_negative_and_equal_times_have_an_interval_of_no_width() -> None:
    wide, none = (
        mean_interval(estimate([0.1, 0.1, 0.1, 0.1, 9.0])),
        mean_interval(estimate([12.5] * 5)),
    )

    assert wide is not None
    assert wide.low == 0.0
    assert none is not None
    assert none.low == none.high == 12.5
