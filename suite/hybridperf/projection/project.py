"""Project what a plan does on a system: seconds of a step, where they go, memory and bytes sent."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Final

from hybridperf.plan.actions import ActionKind
from hybridperf.plan.program import rank_program
from hybridperf.projection.bounds import busiest_s
from hybridperf.projection.costs import plan_costs
from hybridperf.projection.memory import Memory, memory_bytes
from hybridperf.projection.partition import stage_cuts
from hybridperf.projection.simulate import Timeline, simulate
from hybridperf.projection.stages import Stages
from hybridperf.projection.steps import settled_round, settling_plans, simulated_steps
from hybridperf.projection.traffic import sent_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.link import Network
    from hybridperf.projection.simulate import Costs
    from hybridperf.projection.units import UnitTable, UnitTiming

__all__ = ["Projection", "project"]

_MOST_OFF: Final = 2e-3  #: of a step that is extrapolated, the most that rounds to come may differ
_ROUNDING: Final = 1e-9  #: of a step


@dataclass(frozen=True, slots=True)
class Projection:
    """What a plan is projected to do; nothing in it is measured."""

    plan: ParallelPlan
    cuts: tuple[int, ...]  #: first unit of each stage but the first
    step_s: float  #: in the steady state
    samples_per_s: float
    busy_s: tuple[float, ...]  #: by pipeline rank, in a step: passes and updates
    exposed_s: tuple[float, ...]  #: by pipeline rank, in a step: communication that nothing hides
    averaging_s: tuple[float, ...]  #: by pipeline rank, of an update: all but the optimizer's
    memory: tuple[Memory, ...]  #: by pipeline rank
    sent_bytes: dict[str, float]  #: in a step, by kind; see `hybridperf.projection.traffic`
    timeline: Timeline | None  #: of all steps simulated, if asked for

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
    """Return what ``plan`` is projected to do for units that take ``timing`` in its precision.

    ``cuts`` are the first units of each stage but the first, if not those that the plan's ``cut``
    chooses. ``clips`` says whether gradients are clipped, for which the ranks of a pipeline wait.

    Replicas and ranks of a tp group do the same at the same time, so one pipeline is simulated,
    with no more micro-batches than a steady state needs; with all of them for a timeline.

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
    exposed_s: tuple[float, ...]  #: by rank
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
    programs = [list(rank_program(plan, rank, steps)) for rank in range(plan.pp)]
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
