"""How far a score would move if the same system ran again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.scores.blocks import blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["METHOD", "Interval", "olympic_interval"]

_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_101
METHOD: Final = (
    f"95 % percentile bootstrap of the olympic mean over the runs that make the result, "
    f"{_RESAMPLES:,} resamples, seed {_SEED}"
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A range, in the unit of what it belongs to."""

    low: float
    high: float


def olympic_interval(times_s: Sequence[float]) -> Interval | None:
    """Return the bootstrap interval of the olympic mean of ``times_s``, infinite where missed.

    None for fewer than three runs, or where its upper end is infinite. Efron and Tibshirani 1993,
    section 13.3.
    """
    if len(times_s) < 3:
        return None
    import numpy as np

    generator = np.random.default_rng(_SEED)
    in_order, runs = np.sort(times_s), len(times_s)
    draws = (generator.choice(in_order, size=(rows, runs)) for rows in blocks(_RESAMPLES, runs))
    means = np.concatenate([np.sort(each, axis=1)[:, 1:-1].mean(axis=1) for each in draws])
    # Nearest ranks: between a finite and an infinite mean there is nothing to interpolate.
    low, high = np.quantile(means, [0.025, 0.975], method="nearest")
    return Interval(float(low), float(high)) if math.isfinite(high) else None
