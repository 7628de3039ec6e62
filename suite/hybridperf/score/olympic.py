"""Compute the olympic mean, MLPerf's score of a result, and select the scored runs."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fewest_runs", "median_window", "olympic_mean", "scored", "too_many_missed"]


def fewest_runs(drops: int) -> int:
    """Return the least number of runs that have an olympic mean."""
    return 2 * drops + 1


def too_many_missed(drops: int) -> str:
    """Return in words why a result has no finite olympic mean."""
    return f"more than {'one run' if drops == 1 else f'{drops} runs'} missed the target"


def scored(times_s: Sequence[float], drops: int) -> list[int]:
    """Return the indices of the scored runs: all but the ``drops`` fastest and slowest ones.

    ``times_s`` are times to train in seconds [run], ``math.inf`` for runs that missed the target,
    which makes them the slowest. Source: MLPerf Training rules, section 12.1.

    Raises:
        ValueError: if there are fewer than `fewest_runs`.
    """
    if len(times_s) < fewest_runs(drops):
        least = fewest_runs(drops)
        raise ValueError(f"an olympic mean takes at least {least} runs, got {len(times_s)}")
    in_order = sorted(range(len(times_s)), key=lambda index: times_s[index])
    return sorted(in_order[drops : len(times_s) - drops])


def olympic_mean(times_s: Sequence[float], drops: int) -> float:
    """Return the mean of the `scored` times; infinite if more than ``drops`` runs missed.

    Raises:
        ValueError: as `scored`.
    """
    return fmean(times_s[index] for index in scored(times_s, drops))


def median_window(times_s: Sequence[float], runs: int, drops: int) -> range:
    """Return the indices of the ``runs`` consecutive runs whose olympic mean is the median.

    ``times_s`` are times to train in seconds [run], sorted by run start, ``math.inf`` for runs that
    missed the target. With an even number of windows, the slower of the two middle ones is taken;
    ties go to the first window. Returns all indices if there are at most ``runs`` times, or too few
    for an olympic mean. Source: MLPerf Training rules, Benchmark Results, Scoring.
    """
    if len(times_s) <= runs or runs < fewest_runs(drops):
        return range(len(times_s))
    scores = [
        olympic_mean(times_s[start : start + runs], drops)
        for start in range(len(times_s) - runs + 1)
    ]
    start = scores.index(sorted(scores)[len(scores) // 2])
    return range(start, start + runs)
