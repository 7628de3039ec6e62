"""Cut a chain of units into pipeline stages: by the cost of units, or for the shortest step.

The second method (``cut=ampa``) follows GroPipe's automatic partition (Liu et al. 2025), which goes
by projected performance; its text is not public, so the search of cuts is ours.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from itertools import accumulate, combinations, pairwise
from math import comb, inf
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.plan import ParallelPlan
from hybridperf.plan.program import rank_program
from hybridperf.projection.costs import plan_costs
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.simulate import fewer_microbatches, simulate
from hybridperf.projection.units import UnitTable, UnitTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hybridperf.plan.fields import PlanFields
    from hybridperf.plan.schedules import Action
    from hybridperf.projection.units import UnitCounts

__all__ = [
    "CutCost",
    "Cuts",
    "ampa",
    "best_cuts",
    "minimax",
    "partition",
    "prefix_nearest",
    "stage_cuts",
]

Algorithm: TypeAlias = Literal["minimax", "prefix_nearest"]
Cuts: TypeAlias = tuple[int, ...]  #: the first unit of each stage but the first


def minimax(costs: Sequence[float], stages: int) -> Cuts:
    """Cut ``costs`` such that the largest sum of a stage is as small as possible.

    Exact. Of all optimal partitions it returns the one with the fullest early stages; each later
    stage keeps at least one unit.

    Raises:
        ValueError: if there are fewer units than stages.
    """
    sums = _prefix_sums(costs, stages)
    bottleneck = _least_bottleneck(sums, stages)
    cuts = [0]
    for later in range(stages - 1, 0, -1):
        cuts.append(min(_reach(sums, cuts[-1], bottleneck), len(costs) - later))
    return tuple(cuts[1:])


def prefix_nearest(costs: Sequence[float], stages: int) -> Cuts:
    """Cut ``costs`` where their prefix sums are nearest to equal parts of the total.

    Stage j of p begins where the sum before it is nearest to j / p of the total, at the earlier of
    two equally near places, from the first stage to the last; each stage has at least one unit.
    Our reading of the prefix sums of Lv et al. (CCGrid 2023), whose text is not public.

    Raises:
        ValueError: if there are fewer units than stages.
    """
    sums = _prefix_sums(costs, stages)
    cuts = [0]
    for stage in range(1, stages):
        places = range(cuts[-1] + 1, len(costs) - (stages - stage) + 1)
        target = stage * sums[-1]
        cuts.append(min(places, key=lambda place: abs(stages * sums[place] - target)))
    return tuple(cuts[1:])


_ALGORITHMS: Final = {"minimax": minimax, "prefix_nearest": prefix_nearest}

#: algorithm, and cost of a unit, by value of a plan's ``cut``
_METHODS: Final[dict[str, tuple[Algorithm, Callable[[UnitCounts], float]]]] = {
    "minimax": ("minimax", lambda unit: unit.forward_flops),
    "uniform": ("prefix_nearest", lambda _: 1),
    "parameters": ("minimax", lambda unit: unit.parameters),
    "prefix_nearest": ("prefix_nearest", lambda unit: unit.forward_flops),
    "ampa": ("minimax", lambda unit: unit.forward_flops),  # which begins there
}


def stage_cuts(plan: PlanFields, units: Sequence[UnitCounts]) -> Cuts:
    """Return where ``plan``, which fits ``units``, cuts them.

    That follows from the plan and from what is counted of the units, not from any device.

    Raises:
        UserError: exit status 2 if a stage of the plan would begin where it cannot.
    """
    allowed = [unit.begins_stage for unit in units]
    if not plan.cuts:
        algorithm, cost = _METHODS[plan.cut]
        costs = [cost(unit) for unit in units]
        cuts = partition(algorithm, costs, plan.pipeline_stages, allowed)
        return ampa(plan, units, cuts) if plan.cut == "ampa" else cuts
    for cut in plan.cuts:
        if not allowed[cut]:
            places = ", ".join(f"{place}" for place in range(1, len(units)) if allowed[place])
            finding = Finding(
                "plan.cut",
                "cuts where units pass floating-point numbers",
                f"{cut}, before unit {units[cut].name!r}",
                f"choose from {places or 'no place: drop pp'}",
                path=f"plan {str(plan)!r}",
            )
            raise UserError(finding, ExitCode.USAGE)
    return plan.cuts


def partition(
    algorithm: Algorithm, costs: Sequence[float], stages: int, allowed: Sequence[bool]
) -> Cuts:
    """Cut units of ``costs`` into ``stages``, which begin only with units that are ``allowed`` to.

    Raises:
        UserError: exit status 2 if there are fewer such units than the stages need.
    """
    edges = [0, *(place for place in range(1, len(costs)) if allowed[place]), len(costs)]
    if stages >= len(edges):
        raise UserError(
            f"expected at most {len(edges) - 1} stages, between which units pass floating-point "
            f"numbers, found {stages}; lower pp.",
            ExitCode.USAGE,
        )
    sums = [sum(costs[first:last]) for first, last in pairwise(edges)]
    return tuple(edges[cut] for cut in _ALGORITHMS[algorithm](sums, stages))


def _prefix_sums(costs: Sequence[float], stages: int) -> list[float]:
    if not 1 <= stages <= len(costs):
        raise ValueError(f"{len(costs)} units cannot make {stages} stages")
    return [0, *accumulate(costs)]


def _least_bottleneck(sums: Sequence[float], stages: int) -> float:
    """Return the smallest possible largest sum of a stage (Nicol 1994, by bisection).

    Either a stage is the bottleneck, and then it is the shortest from where it begins whose sum
    suffices for the stages after it; or it ends one unit earlier, and a later one is.
    """
    first, least = 0, sums[-1]
    for left in range(stages, 1, -1):
        suffices = partial(_suffices, sums, first, left)
        end = bisect_left(range(len(sums)), True, lo=first, key=suffices)
        least = min(least, sums[end] - sums[first])
        first = max(first, end - 1)
    return min(least, sums[-1] - sums[first])


def _suffices(sums: Sequence[float], first: int, stages: int, end: int) -> bool:
    """Return whether no stage from ``first`` on must exceed the sum from there to ``end``."""
    bottleneck = sums[end] - sums[first]
    for _ in range(stages):
        first = _reach(sums, first, bottleneck)
    return first == len(sums) - 1


def _reach(sums: Sequence[float], first: int, bottleneck: float) -> int:
    """Return the last place up to which units from ``first`` on sum up to ``bottleneck``."""
    # Differences, not sums + bottleneck, whose rounding could exclude the stage it is taken from.
    return bisect_right(sums, bottleneck, lo=first, key=lambda sum_: sum_ - sums[first]) - 1


_ALL: Final = 1_000  #: partitions, of which the best is found
_MOST_TRIED: Final = 1_000
_LONGEST_RUN: Final = 4  #: longest run of cuts that are moved together
_STEPS: Final = 4  #: simulated where they overlap
_INSTANT: Final = Network(1, NetworkLink(0.0, inf))


class CutCost(NamedTuple):
    """What a partition leads to; of two, the smaller is better."""

    excess_bytes: float  #: needed memory beyond the available memory, 0 if it suffices
    step_s: float


def ampa(plan: PlanFields, units: Sequence[UnitCounts], start: tuple[int, ...]) -> tuple[int, ...]:
    """Return the cuts of ``units`` by which a step of ``plan`` is simulated to be shortest.

    The search begins at ``start``. A forward pass takes as long as its FLOPs say and a backward
    pass twice as long; messages and averages take no time, and memory suffices. So the cuts follow
    from the pipeline and the model alone. `projected_cuts` goes by times of a device and links.
    """
    step = _CountedStep(plan, units)
    places = [place for place in range(1, len(units)) if units[place].begins_stage]
    return best_cuts(step.outcome, step.at_least_s, places, start)[0]


def best_cuts(
    outcome: Callable[[tuple[int, ...]], CutCost],
    at_least_s: Callable[[tuple[int, ...]], float],
    places: Sequence[int],
    start: tuple[int, ...],
) -> tuple[tuple[int, ...], CutCost]:
    """Return the cuts, out of ``places``, whose ``outcome`` is best; ``start`` if none is better.

    Exact for up to 1,000 partitions. Of more, those that differ from the best so far by a run of up
    to four consecutive cuts, each moved to the next place, are tried until none is better, or 1,000
    have been. A partition whose step takes at least as long as the best, by the lower bound
    ``at_least_s``, is not tried.
    """
    best, tried = (start, outcome(start)), 0
    rounding = 1 - 1e-9  # of the bound, which adds up in another order than a simulation

    def better(candidates: Iterable[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], CutCost]]:
        """Yield each candidate that is better than the best so far, the most promising first."""
        nonlocal tried
        bounded = sorted((at_least_s(cuts) * rounding, cuts) for cuts in candidates)
        for bound_s, cuts in bounded:
            if (0.0, bound_s) >= best[1] or tried == _MOST_TRIED:
                return
            tried += 1
            if (found := outcome(cuts)) < best[1]:
                yield cuts, found

    if comb(len(places), len(start)) <= _ALL:
        for each in better(combinations(places, len(start))):
            best = each
        return best
    while (moved := next(better(_moved(best[0], places)), None)) is not None:
        best = moved
    return best


def _moved(cuts: tuple[int, ...], places: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield ``cuts`` with each short run of them moved to the places before and after."""
    at = [places.index(cut) for cut in cuts]
    limits = [-1, *at, len(places)]
    for first in range(len(at)):
        for last in range(first, min(first + _LONGEST_RUN, len(at))):
            for by in (-1, 1):
                beside = limits[first] if by < 0 else limits[last + 2]
                if (at[first] if by < 0 else at[last]) + by != beside:
                    run = [places[place + by] for place in at[first : last + 1]]
                    yield (*cuts[:first], *run, *cuts[last + 1 :])


class _CountedStep:
    """The pipeline of ``plan`` in FLOPs: passes take as many seconds, all else takes none."""

    def __init__(self, plan: PlanFields, units: Sequence[UnitCounts]) -> None:
        self._plan = plan = ParallelPlan(
            pp=plan.pp,
            schedule=plan.schedule,
            stages=plan.stages,
            microbatches=plan.microbatches,
            staleness=plan.staleness,
            flush=plan.flush,
            recompute=plan.recompute,
        )
        flops = [unit.forward_flops for unit in units]
        self._table, self._until = UnitTable("", tuple(units), 0), [0, *accumulate(flops)]
        self._times = UnitTimes(
            microbatch=1,
            forward_s=tuple(flops),
            backward_s=tuple(2 * each for each in flops),
            loss_s=0.0,
            update_s=(0.0,) * len(flops),
        )
        few, more = fewer_microbatches(plan), fewer_microbatches(plan, rounds=4)
        added = more.microbatches - few.microbatches
        rounds = (plan.microbatches - few.microbatches) / added if added else 0.0
        #: programs of fewer micro-batches, and how often each counts; rounds take the same time
        self._programs = [(_programs(few), 1 - rounds)]
        if rounds:
            self._programs.append((_programs(more), rounds))

    def outcome(self, cuts: tuple[int, ...]) -> CutCost:
        """Return how long the simulated steps take with stages that begin at ``cuts``."""
        priced = plan_costs(self._plan, self._table, self._times, _INSTANT, cuts)
        steps_s = (
            count * simulate(programs, priced.costs).makespan_s
            for programs, count in self._programs
        )
        return CutCost(0.0, sum(steps_s))

    def at_least_s(self, cuts: tuple[int, ...]) -> float:
        """Return a lower bound: the passes of a rank, after the passes of the stages before it."""
        edges = pairwise((0, *cuts, len(self._until) - 1))
        forward = [self._until[last] - self._until[first] for first, last in edges]
        return max(
            self._plan.microbatches * 3 * sum(forward[stage] for stage in own)
            + sum(forward[: own[0]])
            for own in map(self._plan.stages_of, range(self._plan.pp))
        )


def _programs(plan: ParallelPlan) -> list[tuple[Action, ...]]:
    """Return the program of each rank for one step, or for several where they overlap."""
    steps = range(_STEPS if plan.staleness else 1)
    return [tuple(rank_program(plan, rank, steps)) for rank in range(plan.pp)]
