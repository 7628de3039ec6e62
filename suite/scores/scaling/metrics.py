"""What scaling efficiency is measured by: three metrics that differ, each with its name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, get_args

from suite.logs import keys
from suite.scores.olympic import olympic_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suite.logs.log import Log
    from suite.scores.run_score import CurvePoint
    from suite.scores.scaling.side import ScalingRun

__all__ = ["METRICS", "Metric", "metric_words", "rate_between_evaluations", "speed"]

Metric = Literal["time_to_train", "end_to_end_throughput", "steady_throughput"]
METRICS: Final[tuple[Metric, ...]] = get_args(Metric)
_WORDS: Final[dict[Metric, str]] = {
    "time_to_train": "time to train",
    "end_to_end_throughput": "end-to-end throughput",
    "steady_throughput": "steady throughput",
}


def metric_words(metric: Metric) -> str:
    """Return the name of ``metric`` in words."""
    return _WORDS[metric]


def speed(runs: Sequence[ScalingRun], metric: Metric) -> float | None:
    """Return how fast a result of ``runs`` is, per second; None where that is unknown or zero.

    Time to train: one over the olympic mean. End to end: samples over time to train, mean over
    the runs that count. Steady: mean over all ``runs``, also those that do not count, as how fast
    a run goes does not depend on whether it converged.
    """
    if metric == "time_to_train":
        value = 1 / olympic_mean([run.time_s for run in runs])
    elif metric == "end_to_end_throughput":
        value = _mean([run.end_to_end for run in runs if run.counts])
    else:
        rates = [run.steady for run in runs if run.steady is not None]
        value = _mean(rates) if len(rates) == len(runs) else 0.0
    return value if 0 < value < math.inf else None


def rate_between_evaluations(log: Log, samples: int, curve: Sequence[CurvePoint]) -> float | None:
    """Return the samples a second from the first evaluation to the last; None where unknown.

    Evaluations in between are included, as most logs do not say how long they took. Where a log
    says of the last one only how many ``samples`` it came after, they were equally far apart.
    """
    evaluations = log.all(keys.EVAL_ACCURACY)
    count = len(evaluations)
    if count < 2:
        return None
    between_s = (evaluations[-1].time_ms - evaluations[0].time_ms) / 1000
    trained: float = samples * (count - 1) / count
    if len(curve) == count:
        trained = curve[-1].samples - curve[0].samples
    return trained / between_s if between_s > 0 and trained > 0 else None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
