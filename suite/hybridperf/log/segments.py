"""The segments of a run: which plan trained which steps, and from which checkpoint each began."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.untrusted import COUNT_CAP, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.log.log import Entry, Log

__all__ = ["Segment", "last_checkpoint", "plans_of", "segments_of"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a run, from one start of its ranks to the next."""

    plan: str
    first_step: int | None  #: step of training that it began with; None if the log does not say
    line: int = 0  #: line of the log that begins it; 0 for the first segment


def segments_of(log: Log) -> list[Segment]:
    """Return the segments of the run, in order; a run that was never resumed has one."""
    segments = [Segment(str(log.value(keys.PLAN) or ""), 0)]
    for entry in log.all(keys.RESUMED):
        stated = entry.value if isinstance(entry.value, dict) else {}
        plan = stated.get("plan", segments[-1].plan)  # old logs state none: it was the same
        first_step = whole(stated.get("first_step"), 0, COUNT_CAP)
        segments.append(Segment(str(plan), first_step, entry.line))
    return segments


def plans_of(log: Log) -> tuple[str, ...]:
    """Return the plans of the segments, without a plan that repeats the plan before it."""
    plans = [segment.plan for segment in segments_of(log)]
    return tuple(each for at, each in enumerate(plans) if at == 0 or each != plans[at - 1])


def last_checkpoint(entries: Sequence[Entry]) -> int | None:
    """Return the step of the last checkpoint from which a run can go on; None without any.

    A checkpoint of an evaluation counts once the evaluation is logged, which is the next line but
    one or two.
    """
    step: int | None = None
    of_evaluation: tuple[int | None, int | None] = (None, None)
    for entry in entries:
        progress = keys.progress_of(entry.metadata)
        if entry.key == keys.CHECKPOINT:
            saved = whole(entry.metadata.get("step"), 0, COUNT_CAP)
            if progress is not None:
                of_evaluation = (progress, saved)
            elif saved is not None:
                step = saved
        elif entry.key == keys.EVAL_ACCURACY:
            evaluated, saved = of_evaluation
            if saved is not None and evaluated == progress:
                step = saved
    return step
