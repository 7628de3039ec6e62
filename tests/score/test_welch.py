from __future__ import annotations

import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.score.statistics import (
    estimate,
    mean_interval,
    olympic_mean,
    ratio_interval,
    t_quantile,
    t_tail,
    welch,
)
from tests.score.test_olympic import BAIDU_S

scipy_stats = pytest.importorskip("scipy.stats")

_TIMES = st.lists(st.floats(1, 1e4), min_size=2, max_size=12)


@settings(deadline=None)
@given(st.floats(-50, 50), st.floats(0.5, 1e4))
def test_the_tail_is_scipys(t: float, degrees: float) -> None:
    assert t_tail(t, degrees) == pytest.approx(scipy_stats.t.sf(t, degrees), rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("degrees", [1, 2.5, 9, 11, 17.7, 100, 5000])
@pytest.mark.parametrize("probability", [0.6, 0.95, 0.975, 0.999])
def test_the_quantile_is_scipys(probability: float, degrees: float) -> None:
    expected = scipy_stats.t.ppf(probability, degrees)

    assert t_quantile(probability, degrees) == pytest.approx(expected, rel=1e-9)


def test_the_tails_ends() -> None:
    assert (t_tail(math.inf, 3), t_tail(-math.inf, 3), t_tail(0, 3)) == (0, 1, 0.5)


@settings(deadline=None)
@given(_TIMES, _TIMES)
def test_the_test_is_scipys(one: list[float], other: list[float]) -> None:
    test = welch(estimate(one), estimate(other))
    if test is None or max(max(one) - min(one), max(other) - min(other)) < 1e-6:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of values that do not vary
        expected = scipy_stats.ttest_ind(other, one, equal_var=False)

    assert test.t == pytest.approx(expected.statistic, rel=1e-6, abs=1e-9)
    assert test.degrees == pytest.approx(expected.df, rel=1e-6)
    assert test.p_value == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(_TIMES, _TIMES)
def test_the_interval_holds_one_where_the_means_do_not_differ(
    one: list[float], other: list[float]
) -> None:
    means = estimate(one), estimate(other)
    test, interval = welch(*means), ratio_interval(*means)
    if test is None or interval is None or abs(test.p_value - 0.05) < 1e-6:
        return
    ratio = math.fsum(other) / len(other) / (math.fsum(one) / len(one))

    assert interval.low <= ratio <= interval.high
    assert (interval.low <= 1 <= interval.high) == (test.p_value > 0.05)


@pytest.mark.parametrize(
    ("one", "other"), [([1.0], [1.0, 2.0]), ([], []), ([2.0, 2.0], [3.0, 3.0])]
)
def test_what_cannot_be_tested_is_none(one: list[float], other: list[float]) -> None:
    assert welch(estimate(one), estimate(other)) is None
    assert ratio_interval(estimate(one), estimate(other)) is None


def test_a_ratio_without_upper_end_has_no_interval() -> None:
    assert ratio_interval(estimate([1.0, 100.0]), estimate([50.0, 51.0])) is None


def test_a_mean_has_the_interval_of_students_t() -> None:
    interval = mean_interval(estimate(BAIDU_S))

    assert interval is not None
    error = scipy_stats.sem(BAIDU_S)
    expected = scipy_stats.t.interval(0.95, 9, loc=sum(BAIDU_S) / 10, scale=error)
    assert (interval.low, interval.high) == pytest.approx(expected)


def test_a_trimmed_mean_is_the_olympic_mean_with_yuens_variance() -> None:
    other = [time_s * 1.05 for time_s in BAIDU_S[:7]]
    one, two = estimate(BAIDU_S, 1), estimate(other, 1)
    test = welch(one, two)

    assert one is not None
    assert one.mean == olympic_mean(BAIDU_S, 1)
    assert test is not None
    # scipy trims a share of the values: 0.15 of ten and of seven is one.
    yuen = scipy_stats.ttest_ind(other, BAIDU_S, equal_var=False, trim=0.15)
    assert (test.t, test.p_value) == pytest.approx((yuen.statistic, yuen.pvalue))
