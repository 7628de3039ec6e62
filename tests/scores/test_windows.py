from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suite.scores.olympic import olympic_mean
from suite.scores.windows import median_window

MISSED = math.inf


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
    assert median_window(times_s, runs) == window


@given(
    st.lists(st.floats(1, 100) | st.just(MISSED), min_size=3, max_size=20),
    st.integers(3, 10),
)
def test_at_least_half_of_the_windows_are_no_better_and_half_no_worse(
    times_s: list[float], runs: int
) -> None:
    window = median_window(times_s, runs)
    size = min(runs, len(times_s))
    scores = [
        olympic_mean(times_s[start : start + size]) for start in range(len(times_s) - size + 1)
    ]
    own = olympic_mean([times_s[place] for place in window])

    assert len(window) == size
    assert 2 * sum(score <= own for score in scores) >= len(scores)
    assert 2 * sum(score >= own for score in scores) >= len(scores)
