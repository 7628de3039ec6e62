from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridperf.score.statistics import median_window, olympic_mean, scored

# MLPerf Training v2.1, BERT, Baidu 8_node_64_A100_PaddlePaddle, ten runs in seconds.
BAIDU_S = [161.205, 161.433, 143.204, 142.699, 152.105, 142.506, 142.594, 142.773, 151.895, 151.943]
MISSED = math.inf
_TIMES = st.lists(st.floats(0.001, 1e6), min_size=3, max_size=20)


@pytest.mark.parametrize(
    ("times_s", "mean_s"),
    [
        ([1, 2, 3], 2),
        ([3, 1, 2], 2),
        ([10, 10, 10, 10, 10], 10),
        ([1, 2, 3, 4, 100], 3),
        ([5, 5, 1, 9, 5, 5], 5),
        ([10, 20, 30, 40, math.inf], 30),
        ([1, 2, math.inf], 2),
    ],
)
def test_the_fastest_and_the_slowest_do_not_count(times_s: list[float], mean_s: float) -> None:
    assert olympic_mean(times_s, 1) == mean_s


def test_a_published_mlperf_score_comes_out() -> None:
    assert olympic_mean(BAIDU_S, 1) == pytest.approx(148.552, abs=5e-4)
    assert olympic_mean(BAIDU_S, 1) / 60 == pytest.approx(2.4758708, abs=1e-5)


def test_a_second_miss_makes_the_mean_infinite() -> None:
    assert olympic_mean([1, 2, 3, math.inf, math.inf], 1) == math.inf


@pytest.mark.parametrize(
    ("times_s", "places"),
    [
        ([3, 1, 2], [2]),
        ([5, 4, 3, 2, 1], [1, 2, 3]),
        ([math.inf, 1, 2, 3], [2, 3]),
        ([7, 7, 7], [1]),
    ],
)
def test_which_runs_count_is_told_in_the_given_order(
    times_s: list[float], places: list[int]
) -> None:
    assert scored(times_s, 1) == places


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_runs_have_no_olympic_mean(count: int) -> None:
    with pytest.raises(ValueError, match=f"at least 3 runs, got {count}"):
        olympic_mean([1.0] * count, 1)


@settings(deadline=None)
@given(_TIMES, st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_matter(times_s: list[float], random: object) -> None:
    other = list(times_s)
    random.shuffle(other)  # type: ignore[attr-defined]  # hypothesis calls it object

    assert olympic_mean(other, 1) == pytest.approx(olympic_mean(times_s, 1))
    assert min(times_s) <= olympic_mean(times_s, 1) * (1 + 1e-12)
    assert olympic_mean(times_s, 1) <= max(times_s) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("times_s", "runs", "window"),
    [
        ([], 5, range(0)),
        ([3, 1, 2], 5, range(3)),
        ([3, 1, 2], 3, range(3)),
        # Of 3, the middles are 1 2 3 4 5: windows at 0 to 4, the median is 3.
        ([0, 1, 2, 3, 4, 5, 6], 3, range(2, 5)),
        # Of 3: 9, 8, 8, 2: sorted 2 8 8 9, of the two in the middle the slower, 8: the first such.
        ([9, 10, 8, 2, 8.5, 1], 3, range(1, 4)),
        # Two windows, 1 2 3 and 2 3 4: the slower.
        ([1, 2, 3, 4], 3, range(1, 4)),
        # A run that missed is the slowest of its window; two make it infinite.
        ([1, MISSED, 2, 3], 3, range(1, 4)),
        ([1, MISSED, MISSED, 2, 3, 4, 5], 3, range(4, 7)),
        ([MISSED, MISSED, 1, 2], 3, range(3)),
        ([1, 1, 1, 1, 1], 3, range(3)),
        ([5, 4, 3, 2, 1], 2, range(5)),
        ([5, 4, 3], 0, range(3)),
        ([5, 4, 3], -1, range(3)),
    ],
)
def test_the_window_of_the_median(times_s: list[float], runs: int, window: range) -> None:
    assert median_window(times_s, runs, 1) == window


@given(
    st.lists(st.floats(1, 100) | st.just(MISSED), min_size=3, max_size=20),
    st.integers(3, 10),
)
def test_at_least_half_of_the_windows_are_no_better_and_half_no_worse(
    times_s: list[float], runs: int
) -> None:
    window = median_window(times_s, runs, 1)
    size = min(runs, len(times_s))
    scores = [
        olympic_mean(times_s[start : start + size], 1) for start in range(len(times_s) - size + 1)
    ]
    own = olympic_mean([times_s[place] for place in window], 1)

    assert len(window) == size
    assert 2 * sum(score <= own for score in scores) >= len(scores)
    assert 2 * sum(score >= own for score in scores) >= len(scores)
