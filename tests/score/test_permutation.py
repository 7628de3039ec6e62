from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.score.permutation import permutation_test

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize(
    ("one", "other", "p_value", "splits"),
    [
        # Of the six splits, 1 2 | 3 4 and its mirror image differ most.
        ([1, 2], [3, 4], 2 / 6, 6),
        ([1, 3], [2, 4], 4 / 6, 6),  # t = 0.71; 1 4 | 2 3 has 0, 1 2 | 3 4 has 2.83
        ([1, 2, 3], [10, 11, 12], 2 / 20, 20),
        ([5, 5, 5], [5, 5, 5], 1, 20),
        ([10.1] * 5, [10.3] * 5, 2 / 252, 252),  # nothing varies but between the two
    ],
)
def test_small_sets_are_split_in_every_way(
    one: list[float], other: list[float], p_value: float, splits: int
) -> None:
    test = permutation_test(one, other)

    assert test is not None
    assert test.p_value == pytest.approx(p_value)
    assert (test.splits, test.exact) == (splits, True)
    assert test.method == f"permutation test of Welch's t, two-sided, all {splits} splits"


@pytest.mark.parametrize(("one", "other"), [([], [1, 2]), ([1], [2, 3]), ([1, 2], [3])])
def test_fewer_than_two_runs_each_are_not_tested(one: list[float], other: list[float]) -> None:
    assert permutation_test(one, other) is None


def _t(one: object, other: object, axis: int) -> object:
    return abs(stats.ttest_ind(one, other, axis=axis, equal_var=False).statistic)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(0, 10_000), min_size=2, max_size=6, unique=True),
    st.lists(st.integers(20_000, 40_000), min_size=2, max_size=6, unique=True),
    st.integers(-30_000, 0),
)
def test_scipy_says_the_same(one: list[int], other: list[int], moved: int) -> None:
    apart = [value + moved + 0.5 for value in other]
    expected = stats.permutation_test(
        (one, apart),
        _t,
        vectorized=True,
        n_resamples=10_000,
        alternative="greater",
        permutation_type="independent",
    )

    test = permutation_test(one, apart)

    assert test is not None
    assert test.p_value == pytest.approx(expected.pvalue)


def test_many_runs_are_split_at_random_but_always_the_same() -> None:
    one, other = [float(n % 7) for n in range(12)], [float(n % 5) + 1 for n in range(13)]

    test = permutation_test(one, other)

    assert test is not None
    assert not test.exact
    assert test.method.endswith("20,000 random splits, seed 20260101")
    assert test == permutation_test(one, other)
    welch = stats.ttest_ind(one, other, equal_var=False).pvalue
    assert test.p_value == pytest.approx(welch, abs=0.02)


def test_no_p_value_is_zero() -> None:
    test = permutation_test([float(n) for n in range(20)], [float(n) + 1e6 for n in range(20)])

    assert test is not None
    assert test.p_value == pytest.approx(1 / 20_001)
