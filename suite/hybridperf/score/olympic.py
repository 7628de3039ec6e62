"""Compute the olympic mean, MLPerf's score of a result, and select the scored runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["median_window", "olympic_mean", "scored"]


def scored(times_s: Sequence[float]) -> list[int]:
    """Return the indices of the scored runs: all but the fastest and the slowest.

    ``times_s`` are times to train in seconds, ``math.inf`` for a run that missed the target, which
    makes it the slowest. Source: MLPerf Training rules, section 12.1.

    Raises:
        ValueError: if there are fewer than three runs.
    """
    if len(times_s) < 3:
        raise ValueError(f"an olympic mean takes at least 3 runs, got {len(times_s)}")
    ranked = sorted(range(len(times_s)), key=lambda index: times_s[index])
    return sorted(ranked[1:-1])


def olympic_mean(times_s: Sequence[float]) -> float:
    """Return the mean time of the scored runs; infinite if more than one run missed the target."""
    kept = scored(times_s)
    return math.fsum(times_s[index] for index in kept) / len(kept)


def median_window(times_s: Sequence[float], runs: int) -> range:
    """Return the indices of the ``runs`` consecutive runs whose olympic mean is the median.

    ``times_s`` are times to train in seconds, in order of run start, ``math.inf`` for runs that
    missed the target. With an even number of windows, the slower of the two middle ones is taken;
    ties go to the first window. Returns all indices if there are at most ``runs`` times, or too few
    for an olympic mean. Source: MLPerf Training rules, Benchmark Results, Scoring.
    """
    if len(times_s) <= runs or runs < 3:
        return range(len(times_s))
    scores = [
        olympic_mean(times_s[start : start + runs]) for start in range(len(times_s) - runs + 1)
    ]
    start = scores.index(sorted(scores)[len(scores) // 2])
    return range(start, start + runs)
