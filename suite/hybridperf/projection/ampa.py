"""Cut a chain of units where the simulated step is shortest.

After GroPipe's automatic partition (Liu et al. 2025), which goes by projected performance; its text
is not public, so how the cuts are searched is ours.
"""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise
from math import comb, inf
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan import ParallelPlan
from hybridperf.plan.program import rank_program
from hybridperf.projection.costs import plan_costs
from hybridperf.projection.link import Link, Network
from hybridperf.projection.simulate import simulate
from hybridperf.projection.steps import fewer_microbatches
from hybridperf.projection.units import UnitTable, UnitTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hybridperf.plan.actions import Action
    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.units import Unit

__all__ = ["Outcome", "ampa", "best_cuts"]

_ALL: Final = 1_000  #: partitions, of which the best is found
_MOST_TRIED: Final = 1_000
_LONGEST_RUN: Final = 4  #: of cuts that are moved together
_STEPS: Final = 4  #: simulated where they overlap
_INSTANT: Final = Network(1, Link(0.0, inf))


class Outcome(NamedTuple):
    """What a partition leads to; of two, the smaller is better."""

    excess_bytes: float  #: of the memory needed over the memory there is, 0 if it suffices
    step_s: float


def ampa(plan: PlanFields, units: Sequence[Unit], start: tuple[int, ...]) -> tuple[int, ...]:
    """Return the cuts of ``units`` by which a step of ``plan`` is simulated to be shortest.

    The search begins at ``start``. A forward pass takes as long as its FLOPs say and a backward
    pass twice as long; messages and averages take no time, and memory suffices. So the cuts follow
    from the pipeline and the model alone. `projected_cuts` goes by times of a device and links.
    """
    step = _CountedStep(plan, units)
    places = [place for place in range(1, len(units)) if units[place].begins_stage]
    return best_cuts(step.outcome, step.at_least_s, places, start)[0]


def best_cuts(
    outcome: Callable[[tuple[int, ...]], Outcome],
    at_least_s: Callable[[tuple[int, ...]], float],
    places: Sequence[int],
    start: tuple[int, ...],
) -> tuple[tuple[int, ...], Outcome]:
    """Return the cuts, out of ``places``, whose ``outcome`` is best; ``start`` if none is better.

    Exact for up to 1,000 partitions. Of more, those that differ from the best so far by a run of up
    to four consecutive cuts, each moved to the next place, are tried until none is better, or 1,000
    have been. A partition whose step takes at least as long as the best, by the lower bound
    ``at_least_s``, is not tried.
    """
    best, tried = (start, outcome(start)), 0
    rounding = 1 - 1e-9  # of the bound, which adds up in another order than a simulation

    def better(candidates: Iterable[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], Outcome]]:
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

    def __init__(self, plan: PlanFields, units: Sequence[Unit]) -> None:
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

    def outcome(self, cuts: tuple[int, ...]) -> Outcome:
        """Return how long the simulated steps take with stages that begin at ``cuts``."""
        priced = plan_costs(self._plan, self._table, self._times, _INSTANT, cuts)
        steps_s = (
            count * simulate(programs, priced.costs).makespan_s
            for programs, count in self._programs
        )
        return Outcome(0.0, sum(steps_s))

    def at_least_s(self, cuts: tuple[int, ...]) -> float:
        """Return what they take at least: the passes of a rank, after those of stages before it."""
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
