"""Compute the speed of a result by three metrics, and intervals of ratios of speeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, get_args

from hybridperf.score.interval import Interval, blocks
from hybridperf.score.olympic import olympic_mean
from hybridperf.score.run_score import known_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.score.scaling.side import ScalingRun

__all__ = ["METHOD", "METRICS", "Metric", "metric_words", "speed", "speed_ratio_interval"]

Metric = Literal["time_to_train", "end_to_end_throughput", "steady_throughput"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
_WORDS: Final[dict[Metric, str]] = {
    "time_to_train": "time to train",
    "end_to_end_throughput": "end-to-end throughput",
    "steady_throughput": "steady throughput",
}
_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_101
METHOD: Final = (
    f"95 % percentile bootstrap over the runs of both results, {_RESAMPLES:,} resamples, "
    f"seed {_SEED}"
)


def metric_words(metric: Metric) -> str:
    """Return the display name of ``metric``."""
    return _WORDS[metric]


def speed(runs: Sequence[ScalingRun], metric: Metric, drops: int) -> float | None:
    """Return the speed of a result by ``metric``; None if unknown or zero.

    Time to train: reciprocal of the olympic mean, in 1/s. End-to-end throughput: samples over time
    to train, mean over the scored runs, in samples/s. Steady throughput: mean over all ``runs``,
    in samples/s, since it does not depend on convergence.
    """
    if metric == "time_to_train":
        time_s = olympic_mean([run.time_s for run in runs], drops)
        value = 1 / time_s if time_s > 0 else 0.0
    elif metric == "end_to_end_throughput":
        value = known_mean(run.end_to_end for run in runs if run.counts) or 0.0
    else:
        rates = [run.steady for run in runs]
        value = 0.0 if None in rates else known_mean(rates) or 0.0
    return value if 0 < value < math.inf else None


def speed_ratio_interval(
    base: Sequence[ScalingRun], other: Sequence[ScalingRun], metric: Metric, drops: int
) -> Interval | None:
    """Return the 95 % percentile bootstrap interval of the speed of ``other`` over ``base``.

    Runs are resampled independently for each result. A resample in which more than ``drops``
    runs missed the target has a speed of 0; if that is frequent in the base, the upper bound is
    infinite. Source: Efron and Tibshirani 1993, section 13.3.
    """
    import numpy as np

    generator = np.random.default_rng(_SEED)
    with np.errstate(divide="ignore", invalid="ignore"):  # times of 0, and of infinity
        below, above = (_speeds(runs, metric, drops, generator) for runs in (base, other))
        ratios = above / below
    # The ratio may be any value if neither reaches the target, or if both take no time.
    lows, highs = (np.where(np.isnan(ratios), unknown, ratios) for unknown in (0.0, np.inf))
    # Nearest order statistic: no interpolation between a finite and an infinite ratio.
    low = np.quantile(lows, 0.025, method="nearest")
    high = np.quantile(highs, 0.975, method="nearest")
    return Interval(float(low), float(high)) if np.isfinite(low) else None


def _speeds(
    runs: Sequence[ScalingRun], metric: Metric, drops: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return the speed of each resample [resample]."""
    import numpy as np

    in_order = sorted(runs, key=lambda run: (run.time_s, run.end_to_end, run.steady or 0.0))
    speeds = []
    for rows in blocks(_RESAMPLES, len(runs)):
        # Indices into the runs sorted by time: sorting the indices sorts the times.
        draws = np.sort(generator.integers(len(runs), size=(rows, len(runs))), axis=1)
        speeds.append(_speeds_of(draws, in_order, metric, drops))
    return np.concatenate(speeds)


def _speeds_of(
    draws: NDArray[np.int64], in_order: Sequence[ScalingRun], metric: Metric, drops: int
) -> NDArray[np.float64]:
    """Return the speed of each of ``draws`` [resample, run], as defined by `speed`."""
    import numpy as np

    kept = slice(drops, len(in_order) - drops)
    if metric == "time_to_train":
        times = np.array([run.time_s for run in in_order])[draws]
        return np.asarray(1 / times[:, kept].mean(axis=1), dtype=np.float64)
    if metric == "end_to_end_throughput":
        rates = np.array([run.end_to_end for run in in_order])[draws][:, kept]
    else:
        rates = np.array([run.steady or 0.0 for run in in_order])[draws]
    return np.asarray(rates.mean(axis=1), dtype=np.float64)
