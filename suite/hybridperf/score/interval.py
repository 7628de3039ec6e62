"""Compute bootstrap confidence intervals of the olympic mean."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.score.olympic import fewest_runs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["METHOD", "Interval", "blocks", "olympic_interval"]

_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_101
_BLOCK: Final = 2**20  #: random numbers per block
_FEW: Final = 40  #: runs of which resamples are kept
METHOD: Final = (
    f"95 % percentile bootstrap of the olympic mean over the runs that make the result, "
    f"{_RESAMPLES:,} resamples, seed {_SEED}"
)


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, in the unit of the estimate."""

    low: float
    high: float  #: infinite if unbounded


def olympic_interval(times_s: Sequence[float], drops: int) -> Interval | None:
    """Return the 95 % percentile bootstrap interval of the olympic mean, in seconds.

    ``times_s`` are times to train in seconds [run], ``math.inf`` for runs that missed the target:
    such a time is right-censored. If ``drops`` runs missed, many resamples contain more misses than
    the mean leaves out and have an infinite mean, so the upper bound is infinite. Returns None for
    fewer than `fewest_runs`, or if more than ``drops`` missed. Source: Efron and Tibshirani 1993,
    section 13.3.
    """
    if len(times_s) < fewest_runs(drops) or sum(map(math.isinf, times_s)) > drops:
        return None
    import numpy as np

    in_order, runs = np.sort(times_s), len(times_s)
    kept = slice(drops, runs - drops)
    draws: Iterable[NDArray[np.integer]] = _few_draws(runs) if runs <= _FEW else _draws(runs)
    means = np.concatenate([in_order[each[:, kept]].mean(axis=1) for each in draws])
    # Nearest order statistic: no interpolation between a finite and an infinite mean.
    low, high = np.quantile(means, [0.025, 0.975], method="nearest")
    return Interval(float(low), float(high))


def _draws(runs: int) -> Iterator[NDArray[np.intp]]:
    """Yield blocks of resamples [resample, run]: indices of runs, by time, in ascending order."""
    import numpy as np

    generator = np.random.default_rng(_SEED)
    for rows in blocks(_RESAMPLES, runs):
        yield np.sort(generator.choice(runs, size=(rows, runs)), axis=1)


@functools.cache
def _few_draws(runs: int) -> tuple[NDArray[np.uint8], ...]:
    # Most results of a round have as many runs as another one, and drawing takes most of the time.
    import numpy as np

    return tuple(each.astype(np.uint8) for each in _draws(runs))


def blocks(samples: int, runs: int) -> Iterator[int]:
    """Yield block sizes that add up to ``samples``, so that memory does not grow with ``runs``."""
    most = max(1, _BLOCK // runs)
    for done in range(0, samples, most):
        yield min(most, samples - done)
