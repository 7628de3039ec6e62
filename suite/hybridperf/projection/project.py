"""Project a plan on a system: its step time by parts, memory and bytes sent.

With the cuts of a pipeline by which the step is shortest, and the entry of a run's log.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.log import keys
from hybridperf.plan.fields import FIELDS
from hybridperf.plan.program import rank_program
from hybridperf.plan.schedules import ActionKind
from hybridperf.projection.costs import busiest_s, plan_at_least_s, plan_costs
from hybridperf.projection.memory import Memory, memory_bytes
from hybridperf.projection.partition import CutCost, best_cuts, partition, stage_cuts
from hybridperf.projection.simulate import (
    Timeline,
    settled_round,
    settling_plans,
    simulate,
    simulated_steps,
)
from hybridperf.projection.traffic import Stages, sent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.plan.schedules import Action
    from hybridperf.projection.network import Network
    from hybridperf.projection.simulate import Costs
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = [
    "Projection",
    "duration",
    "parts_of",
    "project",
    "projected_cuts",
    "stated",
    "why_slower",
]

_MOST_OFF: Final = 2e-3  #: bound on the spread of later rounds, as a share of an extrapolated step
_ROUNDING: Final = 1e-9  #: rounding error as a share of a step


@dataclass(frozen=True, slots=True)
class Projection:
    """Projected step, memory and traffic of a plan; nothing is measured."""

    plan: ParallelPlan
    cuts: tuple[int, ...]  #: first unit of each stage but the first
    step_s: float  #: step time in the steady state
    samples_per_s: float
    busy_s: tuple[float, ...]  #: passes and updates of a step, by pipeline rank
    exposed_s: tuple[float, ...]  #: exposed communication of a step, by pipeline rank
    averaging_s: tuple[float, ...]  #: update without the optimizer, by pipeline rank
    memory: tuple[Memory, ...]  #: memory by pipeline rank
    sent_bytes: dict[str, float]  #: bytes sent in a step, by kind (`hybridperf.projection.traffic`)
    timeline: Timeline | None  #: timeline of all simulated steps, if requested

    @property
    def idle_share(self) -> float:
        """Return the share of all ranks' time that waits for work of others: the bubble."""
        used = sum(self.busy_s) + sum(self.exposed_s)
        return max(0.0, 1 - used / (len(self.busy_s) * self.step_s))

    @property
    def exposed_communication_s(self) -> float:
        """Return the seconds of a step that exposed communication takes of a rank, on average."""
        return sum(self.exposed_s) / len(self.exposed_s)

    @property
    def memory_bytes(self) -> tuple[int, ...]:
        """Return the bytes that each pipeline rank needs."""
        return tuple(memory.total_bytes for memory in self.memory)


def project(
    plan: ParallelPlan,
    units: UnitTable,
    timing: UnitTiming,
    network: Network,
    *,
    global_batch_size: int,
    optimizer: str,
    cuts: Sequence[int] | None = None,
    clips: bool = False,
    with_timeline: bool = False,
) -> Projection:
    """Return the projection of ``plan`` with unit times by ``timing`` in its precision.

    ``cuts`` are the first units of each stage but the first (default: by the plan's ``cut``).
    ``clips`` says whether gradients are clipped, for which the ranks of a pipeline wait.

    Replicas and ranks of tp and cp groups do the same at the same time, so one pipeline is
    simulated, with no more micro-batches than a steady state needs; with all of them for a
    timeline.

    Raises:
        ArithmeticError: if a part of the step is negative, which is an error of the projection.
    """
    cuts = stage_cuts(plan, units.units) if cuts is None else cuts
    stages = Stages(plan, units, cuts)
    microbatch = global_batch_size // (plan.dp * plan.microbatches)
    priced = plan_costs(plan, units, timing(microbatch), network, cuts, clips=clips)
    steady = _steady(plan, priced.costs) if not with_timeline else _simulated(plan, priced.costs)
    step_s = max(steady.step_s, busiest_s(plan, priced.costs))
    hidden_s = [  # exposed, but part of what the simulation takes for passes and updates
        plan.microbatches * passes + update
        for passes, update in zip(priced.passes_exposed_s, priced.update_exposed_s, strict=True)
    ]
    busy_s = (_compute_s(plan, priced.costs, rank) - hidden_s[rank] for rank in range(plan.pp))
    return Projection(
        plan=plan,
        cuts=tuple(cuts),
        step_s=step_s,
        samples_per_s=global_batch_size / step_s,
        busy_s=_parts(busy_s, step_s),
        exposed_s=_parts(map(add, steady.exposed_s, hidden_s), step_s),
        averaging_s=tuple(map(add, priced.update_exposed_s, priced.runtime_s)),
        memory=memory_bytes(plan, units, cuts, microbatch, optimizer),
        sent_bytes=sent_bytes(stages, microbatch),
        timeline=steady.timeline if with_timeline else None,
    )


def _compute_s(plan: ParallelPlan, costs: Costs, rank: int) -> float:
    """Return the seconds of the passes and the update of ``rank`` in a step."""
    passes_s = sum(costs.forward_s[s] + costs.backward_s[s] for s in plan.stages_of(rank))
    return plan.microbatches * passes_s + costs.update_s[rank]


def _parts(parts_s: Iterable[float], step_s: float) -> tuple[float, ...]:
    """Return the parts of a step by rank, without the rounding errors of those that are zero."""
    found = tuple(parts_s)
    if min(found) < -_ROUNDING * step_s:
        raise ArithmeticError(f"a step of {step_s} s has a part of {min(found)} s")
    return tuple(max(0.0, each) for each in found)


@dataclass(frozen=True, slots=True)
class _Steady:
    """The steady state of a simulated plan."""

    plan: ParallelPlan
    step_s: float
    exposed_s: tuple[float, ...]  #: exposed communication by rank
    timeline: Timeline


def _steady(plan: ParallelPlan, costs: Costs) -> _Steady:
    """Return the steady state of ``plan``, simulated with as few micro-batches as show it."""
    _, measured = simulated_steps(plan)
    for fewer in settling_plans(plan):
        found = _simulated(fewer, costs)
        rounds = (plan.microbatches - fewer.microbatches) / plan.pp
        if not rounds:
            break
        more = settled_round(found.timeline, fewer, measured[-1])
        if more is None:
            continue
        step_s = found.step_s + rounds * more.seconds
        if rounds * more.spread_s <= _MOST_OFF * step_s:
            exposed_s = map(add, found.exposed_s, (rounds * each for each in more.exposed_s))
            return _Steady(plan, step_s, tuple(exposed_s), found.timeline)
    return found


def _simulated(plan: ParallelPlan, costs: Costs) -> _Steady:
    """Simulate several steps of ``plan``, and return what the steady ones take."""
    steps, steady = simulated_steps(plan)
    programs = _programs(plan, steps)
    timeline = simulate(programs, costs)
    begins = {
        action.step: start
        for action, start in zip(reversed(programs[0]), reversed(timeline.start_s[0]), strict=True)
        if action.kind is ActionKind.FORWARD  # the first of each step is the last one here
    }
    step_s = (begins[steady.stop] - begins[steady.start]) / len(steady)
    exposed_s = tuple(
        sum(waits.get(step, 0.0) for step in steady) / len(steady) for waits in timeline.exposed_s
    )
    return _Steady(plan, step_s, exposed_s, timeline)


@functools.lru_cache(maxsize=8)  # a search of cuts simulates the same programs a thousand times
def _programs(plan: ParallelPlan, steps: range) -> tuple[tuple[Action, ...], ...]:
    """Return the program of each rank of a pipeline for ``steps``."""
    return tuple(tuple(rank_program(plan, rank, steps)) for rank in range(plan.pp))


def projected_cuts(
    plan: ParallelPlan,
    units: UnitTable,
    timing: UnitTiming,
    network: Network,
    *,
    global_batch_size: int,
    optimizer: str,
    clips: bool = False,
    device_bytes: float = float("inf"),
) -> ParallelPlan:
    """Return ``plan`` with the ``cuts`` of the shortest projected step.

    The plan's text states the cuts, and so the trained stages, without the times of a device. No
    rank needs more than ``device_bytes``. The search, `best_cuts`, begins with the best of the
    plan's own cuts and the exact partitions by FLOPs, by parameters and by times.

    Raises:
        UserError: exit status 2 if no partition that was tried fits into ``device_bytes``.
    """
    if plan.pp == 1:
        return plan

    def outcome(cuts: tuple[int, ...]) -> CutCost:
        projection = project(
            plan,
            units,
            timing,
            network,
            global_batch_size=global_batch_size,
            optimizer=optimizer,
            cuts=cuts,
            clips=clips,
        )
        return CutCost(max(0.0, max(projection.memory_bytes) - device_bytes), projection.step_s)

    def at_least_s(cuts: tuple[int, ...]) -> float:
        priced = plan_costs(plan, units, times, network, cuts, clips=clips)
        return plan_at_least_s(plan, priced.costs)

    places = [place for place in range(1, len(units.units)) if units.units[place].begins_stage]
    times = timing(global_batch_size // (plan.dp * plan.microbatches))
    starts = (
        stage_cuts(plan, units.units),
        stage_cuts(replace(plan, cut="minimax", cuts=()), units.units),
        stage_cuts(replace(plan, cut="parameters", cuts=()), units.units),
        partition(
            "minimax",
            list(map(add, times.forward_s, times.backward_s)),
            plan.pipeline_stages,
            [unit.begins_stage for unit in units.units],
        ),
    )
    cuts, (excess_bytes, _) = best_cuts(outcome, at_least_s, places, min(starts, key=outcome))
    if excess_bytes:
        finding = Finding(
            "plan.cut",
            f"cuts by which each device needs at most {device_bytes / 1e9:.2f} GB",
            f"at least {(device_bytes + excess_bytes) / 1e9:.2f} GB",
            "raise pp, or add zero or recompute",
            path=f"plan {str(plan)!r}",
        )
        raise UserError(finding, ExitCode.USAGE)
    return replace(plan, cut=FIELDS["cut"].default, cuts=cuts)


#: limits of what is stated: a line of the log is of limited length
_MOST_RANKS: Final = 128

_WORDS: Final = {  #: names of the actions in a timeline, as trainers log them
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.BACKWARD_INPUT: "backward of inputs",
    ActionKind.BACKWARD_WEIGHT: "backward of weights",
    ActionKind.UPDATE: "update",
}
_PARTS: Final = {  #: parts of a step by the actions that they consist of
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
    for stage, needed_bytes in enumerate(projection.memory_bytes):
        seconds = _spent(projection, timeline, stage, steady)
        yield {
            "stage": stage,
            **{name: round(value / len(steady), 9) for name, value in seconds.items()},
            "memory_bytes": needed_bytes,
        }


def _spent(projection: Projection, timeline: Timeline, rank: int, steps: range) -> dict[str, float]:
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


_UNITS: Final = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_ALIKE: Final = 1e-3  #: relative difference of steps below which it is not worth a reason


def parts_of(projection: Projection) -> dict[str, float]:
    """Return the parts of a step in the mean of ranks, in seconds; their sum is the step."""
    idle_s = projection.idle_share * projection.step_s
    exposed_s = projection.exposed_communication_s
    return {
        "computing": projection.step_s - idle_s - exposed_s,
        "exposed communication": exposed_s,
        "waiting for other stages": idle_s,
    }


def why_slower(slower: Projection, faster: Projection) -> str:
    """Return by how much ``slower`` is, and which part of the step grew most, as a sentence."""
    more_s = slower.step_s - faster.step_s
    if more_s < _ALIKE * faster.step_s:
        return f"{slower.plan} is projected to take as long."
    before, after = parts_of(faster), parts_of(slower)
    part = max(after, key=lambda name: after[name] - before[name])
    longer = f"{duration(more_s)} ({more_s / faster.step_s:.1%})"
    figures = f"{duration(after[part])} a step against {duration(before[part])}"
    return f"{slower.plan} takes {longer} longer, mostly {part}: {figures}."


def duration(seconds: float) -> str:
    """Return ``seconds`` to three digits, in the largest unit of which there is at least one."""
    unit = next((name for name, size in _UNITS.items() if seconds >= size), "us")
    value = seconds / _UNITS[unit]
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
