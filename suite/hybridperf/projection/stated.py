"""What the log of a run states of its projection: seconds of a step by rank, and its timeline."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.plan.schedules import ActionKind
from hybridperf.projection.steps import simulated_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridperf.plan.schedules import Action
    from hybridperf.projection.project import Projection
    from hybridperf.projection.simulate import Timeline

__all__ = ["stated"]

#: limits of what is stated: a line of the log is of limited length
_MOST_RANKS: Final = 128

_WORDS: Final = {  #: of the actions in a timeline, as trainers state them
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.BACKWARD_INPUT: "backward of inputs",
    ActionKind.BACKWARD_WEIGHT: "backward of weights",
    ActionKind.UPDATE: "update",
}
_PARTS: Final = {  #: of a step, by the actions that they consist of
    ActionKind.FORWARD: "compute_s",
    ActionKind.BACKWARD: "compute_s",
    ActionKind.BACKWARD_INPUT: "compute_s",
    ActionKind.BACKWARD_WEIGHT: "compute_s",
    ActionKind.RECEIVE_ACTIVATION: "waiting_s",
    ActionKind.RECEIVE_GRADIENT: "waiting_s",
    ActionKind.SEND_ACTIVATION: "waiting_s",
    ActionKind.SEND_GRADIENT: "waiting_s",
    ActionKind.AWAIT: "exposed_communication_s",
    ActionKind.UPDATE: "optimizer_s",
}


def stated(projection: Projection, source: Mapping[str, object]) -> dict[str, object]:
    """Return ``projection``, which has a timeline, as docs/log.md describes its entry.

    ``source`` says where the times of units are from. Ranks and the timeline are empty where a plan
    has more of them than a line of the log should hold.
    """
    timeline = projection.timeline
    assert timeline is not None, "projected with one"
    every = len(timeline.programs) <= _MOST_RANKS
    return {
        "step_s": round(projection.step_s, 9),
        "samples_per_s": round(projection.samples_per_s, 3),
        "ranks": list(_ranks(projection, timeline)) if every else [],
        "timeline": _last_steps(projection, timeline),
        "source": dict(source),
    }


def _ranks(projection: Projection, timeline: Timeline) -> Iterator[dict[str, object]]:
    """Yield the parts of a step for each rank of a pipeline, in the steady state."""
    _, steady = simulated_steps(projection.plan)
    for stage, memory_bytes in enumerate(projection.memory_bytes):
        seconds = _parts(projection, timeline, stage, steady)
        yield {
            "stage": stage,
            **{name: round(value / len(steady), 9) for name, value in seconds.items()},
            "memory_bytes": memory_bytes,
        }


def _parts(projection: Projection, timeline: Timeline, rank: int, steps: range) -> dict[str, float]:
    """Return the seconds that ``rank`` spends on ``steps`` by part."""
    actions = list(_timed(projection, timeline, rank))
    spans: dict[str, list[float]] = {part: [] for part in _PARTS.values()}
    for action, start_s, end_s in actions:
        if action.step in steps and (part := _PARTS.get(action.kind)):
            spans[part].append(end_s - start_s)
    for (_, _, before_s), (action, start_s, _) in pairwise(actions):
        if action.step in steps:  # an update starts when its gradients are averaged
            spans["exposed_communication_s"].append(start_s - before_s)
    return {part: math.fsum(each) for part, each in spans.items()}


def _last_steps(projection: Projection, timeline: Timeline) -> list[dict[str, object]]:
    """Return the actions of the last step by rank, or of the last two if they overlap."""
    last = timeline.programs[0][-1].step
    steps = range(last if projection.plan.flush else last - 1, last + 1)
    ranks = [
        [
            each
            for each in _timed(projection, timeline, rank)
            if each[0].step in steps and each[0].kind in _WORDS
        ]
        for rank in range(len(timeline.programs))
    ]
    if sum(map(len, ranks)) > keys.TIMELINE_CAP:
        return []
    origin_s = min(start_s for rank in ranks for _, start_s, _ in rank)
    return [
        {
            "rank": number,
            "actions": [
                [
                    _WORDS[action.kind],
                    action.step,
                    # That of an update is the first of its rank.
                    max(action.stage, projection.plan.stages_of(number)[0]),
                    action.microbatch,
                    round(start_s - origin_s, 6),
                    round(end_s - origin_s, 6),
                ]
                for action, start_s, end_s in rank
            ],
        }
        for number, rank in enumerate(ranks)
    ]


def _timed(
    projection: Projection, timeline: Timeline, rank: int
) -> Iterator[tuple[Action, float, float]]:
    """Yield the actions of ``rank`` with their starts and ends.

    As trainers state it, an update is what the optimizer does: it starts after all averaging.
    """
    programs, starts, ends = timeline.programs, timeline.start_s, timeline.end_s
    for action, start_s, end_s in zip(programs[rank], starts[rank], ends[rank], strict=True):
        is_update = action.kind is ActionKind.UPDATE
        yield action, start_s + is_update * projection.averaging_s[rank], end_s
