"""What the device time of a run was spent on, as far as its log says."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from suite.logs import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suite.logs.log import Log

__all__ = ["evaluation_s", "rank_seconds"]

_MOST: Final = 1e9  #: seconds; more was not measured
_FIELDS: Final = ("waiting_s", "input_s", "compute_s", "exposed_communication_s", "optimizer_s")

#: device-seconds by cause; they add up to ranks times the time to train
Breakdown = dict[str, float]


def rank_seconds(log: Log, ranks: int, elapsed_s: float) -> Breakdown | None:
    """Return the seconds of all ``ranks`` by cause, which add up to ``ranks * elapsed_s``.

    Imbalance: what a rank idled because it computed less in a block than the busiest rank did.
    Bubble: what else it waited for other stages. Exposed communication: what else it waited for
    the all-reduce. None where the log does not say it of every rank and evaluation.
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
            waiting = stage["waiting_s"] if piped else 0.0  # else it waits for no other stage
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
    """Return the seconds of all evaluations; None where the log does not say when each was."""
    starts, stops = log.all(keys.EVAL_START), log.all(keys.EVAL_STOP)
    if not starts or len(starts) != len(stops):
        return None
    spans = [stop.time_ms - start.time_ms for start, stop in zip(starts, stops, strict=True)]
    return sum(spans) / 1000 if min(spans) >= 0 else None


def _stages(block: object, ranks: int) -> list[dict[str, float]] | None:
    """Return what a block says of each rank; None unless it says all of each."""
    if not isinstance(block, list) or len(block) != ranks:
        return None
    stages = [_numbers(stage) for stage in block if isinstance(stage, dict)]
    known = [stage for stage in stages if stage is not None]
    return known if len(known) == ranks else None


def _numbers(stage: Mapping[str, object]) -> dict[str, float] | None:
    numbers = {}
    for name in (*_FIELDS, "stage"):
        value = stage.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST:
            return None
        numbers[name] = max(float(value), 0.0)
    return numbers
