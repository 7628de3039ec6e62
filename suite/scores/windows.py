"""Which runs make a result that has more of them than required: not those one would pick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.scores.olympic import olympic_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["median_window"]


def median_window(times_s: Sequence[float], runs: int) -> range:
    """Return the places of the ``runs`` consecutive runs whose olympic mean is the median.

    ``times_s`` are in the order in which the runs began, infinite where one missed its target
    (MLPerf Training rules, Benchmark Results, Scoring). Where there is an even number of windows
    the two in the middle are equally close to the median, and the slower is taken; of equal ones
    the first. All places for no more than ``runs``, or for so few that they have no olympic mean.
    """
    if len(times_s) <= runs or runs < 3:
        return range(len(times_s))
    scores = [
        olympic_mean(times_s[start : start + runs]) for start in range(len(times_s) - runs + 1)
    ]
    start = scores.index(sorted(scores)[len(scores) // 2])
    return range(start, start + runs)
