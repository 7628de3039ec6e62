"""How far a scaling efficiency would move if both systems ran again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.scores.blocks import blocks
from suite.scores.interval import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from suite.scores.scaling.metrics import Metric
    from suite.scores.scaling.side import ScalingRun

__all__ = ["METHOD", "speed_ratio_interval"]

_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_101
METHOD: Final = (
    f"95 % percentile bootstrap over the runs of both results, {_RESAMPLES:,} resamples, "
    f"seed {_SEED}"
)


def speed_ratio_interval(
    base: Sequence[ScalingRun], other: Sequence[ScalingRun], metric: Metric
) -> Interval | None:
    """Return the bootstrap interval of the speed of ``other`` over that of ``base``.

    The runs of each are drawn apart. A resample in which more than one run missed its target has
    the speed 0: where those are not rare in the base, the upper end is infinite. Efron and
    Tibshirani 1993, section 13.3.
    """
    import numpy as np

    generator = np.random.default_rng(_SEED)
    below, above = (_speeds(runs, metric, generator) for runs in (base, other))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = above / below
    # Of two that never get there, either may be the faster one.
    lows, highs = (np.where(np.isnan(ratios), unknown, ratios) for unknown in (0.0, np.inf))
    # Nearest ranks: between a finite and an infinite ratio there is nothing to interpolate.
    low = np.quantile(lows, 0.025, method="nearest")
    high = np.quantile(highs, 0.975, method="nearest")
    return Interval(float(low), float(high)) if np.isfinite(low) else None


def _speeds(
    runs: Sequence[ScalingRun], metric: Metric, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return the speed of each resample."""
    import numpy as np

    in_order = sorted(runs, key=lambda run: (run.time_s, run.end_to_end, run.steady or 0.0))
    speeds = []
    for rows in blocks(_RESAMPLES, len(runs)):
        # Places in the order of times: sorting a draw by place sorts it by time.
        draws = np.sort(generator.integers(len(runs), size=(rows, len(runs))), axis=1)
        speeds.append(_speeds_of(draws, in_order, metric))
    return np.concatenate(speeds)


def _speeds_of(
    draws: NDArray[np.int64], in_order: Sequence[ScalingRun], metric: Metric
) -> NDArray[np.float64]:
    """Return the speed of each of ``draws``, made as `metrics.speed` makes it."""
    import numpy as np

    if metric == "time_to_train":
        times = np.array([run.time_s for run in in_order])[draws]
        return np.asarray(1 / times[:, 1:-1].mean(axis=1), dtype=np.float64)
    if metric == "end_to_end_throughput":
        rates = np.array([run.end_to_end for run in in_order])[draws][:, 1:-1]
    else:
        rates = np.array([run.steady or 0.0 for run in in_order])[draws]
    return np.asarray(rates.mean(axis=1), dtype=np.float64)
