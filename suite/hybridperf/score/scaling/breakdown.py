"""Break down the device time of a run by cause, as recorded in its log."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridperf.log.log import Log
    from hybridperf.score.run_score import CurvePoint

__all__ = ["evaluation_s", "rank_seconds", "rate_between_evaluations"]

_FIELDS: Final = ("waiting_s", "input_s", "compute_s", "exposed_communication_s", "optimizer_s")

#: device-seconds by cause; their sum is the number of ranks times the time to train
Breakdown = dict[str, float]


def rank_seconds(log: Log, ranks: int, elapsed_s: float) -> Breakdown | None:
    """Return the seconds of all ``ranks`` by cause, with a sum of ``ranks * elapsed_s``.

    Imbalance is idle time of a rank that computed less in a block than the busiest rank; bubble is
    the remaining wait for other pipeline stages; exposed communication is the remaining wait for
    the all-reduce. Returns None unless the log records every rank and evaluation.
    """
    blocks = [
        entry.value["stages"]
        for entry in log.all(keys.TRACKED_STATS)
        if isinstance(entry.value, dict) and "stages" in entry.value
    ]
    evaluating = evaluation_s(log)
    if not blocks or evaluating is None:
        return None
    parts = dict.fromkeys(
        ("computation", "exposed-communication", "bubble", "imbalance", "input"), 0.0
    )
    for block in blocks:
        stages = _stages(block, ranks)
        if stages is None:
            return None
        most = max(stage["compute_s"] for stage in stages)
        piped = any(stage["stage"] for stage in stages)
        for stage in stages:
            waiting = stage["waiting_s"] if piped else 0.0
            exposed = stage["exposed_communication_s"]
            uneven = min(waiting + exposed, most - stage["compute_s"])
            bubble = max(waiting - uneven, 0.0)
            parts["imbalance"] += uneven
            parts["bubble"] += bubble
            parts["exposed-communication"] += waiting + exposed - uneven - bubble
            parts["computation"] += stage["compute_s"] + stage["optimizer_s"]
            parts["input"] += stage["input_s"]
    parts["evaluation"] = ranks * evaluating
    parts["rest"] = ranks * elapsed_s - math.fsum(parts.values())
    return parts


def evaluation_s(log: Log) -> float | None:
    """Return the total seconds of evaluation; None if the log lacks the times of one."""
    starts, stops = log.all(keys.EVAL_START), log.all(keys.EVAL_STOP)
    if not starts or len(starts) != len(stops):
        return None
    spans = [stop.time_ms - start.time_ms for start, stop in zip(starts, stops, strict=True)]
    return sum(spans) / 1000 if min(spans) >= 0 else None


def rate_between_evaluations(log: Log, samples: int, curve: Sequence[CurvePoint]) -> float | None:
    """Return samples per second from the first to the last evaluation; None if unknown.

    Evaluations in between are included, since most logs do not record their durations. If ``curve``
    is incomplete, evaluations are assumed to be equally spaced over ``samples``.
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


def _stages(block: object, ranks: int) -> list[dict[str, float]] | None:
    """Return the seconds recorded in ``block`` for each rank; None if a rank is missing."""
    if not isinstance(block, list) or len(block) != ranks:
        return None
    stages = [_numbers(stage) for stage in block if isinstance(stage, dict)]
    known = [stage for stage in stages if stage is not None]
    return known if len(known) == ranks else None


def _numbers(stage: Mapping[str, object]) -> dict[str, float] | None:
    numbers = {}
    for name in (*_FIELDS, "stage"):
        if (value := number(stage.get(name))) is None:
            return None
        numbers[name] = max(float(value), 0.0)
    return numbers
