"""The olympic mean: MLPerf's score of a result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["olympic_mean", "scored"]


def scored(times_s: Sequence[float]) -> list[int]:
    """Return which runs count: all but the fastest and the slowest, in the given order.

    A run that missed the target has the time ``math.inf``, and so is the slowest
    (MLPerf Training rules, section 12.1).

    Raises:
        ValueError: for fewer than three runs.
    """
    if len(times_s) < 3:
        raise ValueError(f"an olympic mean takes at least 3 runs, got {len(times_s)}")
    ranked = sorted(range(len(times_s)), key=lambda index: times_s[index])
    return sorted(ranked[1:-1])


def olympic_mean(times_s: Sequence[float]) -> float:
    """Return the mean of the runs that count; infinite where more than one missed the target."""
    kept = scored(times_s)
    return math.fsum(times_s[index] for index in kept) / len(kept)
