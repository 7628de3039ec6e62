"""Cut a chain of units into pipeline stages by what the units cost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.projection.ampa import ampa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.units import Unit

__all__ = ["Cuts", "minimax", "partition", "prefix_nearest", "stage_cuts"]

Algorithm: TypeAlias = Literal["minimax", "prefix_nearest"]
Cuts: TypeAlias = tuple[int, ...]  #: the first unit of each stage but the first


def minimax(costs: Sequence[float], stages: int) -> Cuts:
    """Cut ``costs`` such that the largest sum of a stage is as small as possible.

    Exact. Of all such partitions it is the one that fills early stages first and leaves each later
    stage at least one unit.

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

#: by the word in a plan's ``cut``: an algorithm, and what it takes as a unit's cost
_METHODS: Final[dict[str, tuple[Algorithm, Callable[[Unit], float]]]] = {
    "minimax": ("minimax", lambda unit: unit.forward_flops),
    "uniform": ("prefix_nearest", lambda _: 1),
    "parameters": ("minimax", lambda unit: unit.parameters),
    "prefix_nearest": ("prefix_nearest", lambda unit: unit.forward_flops),
    "ampa": ("minimax", lambda unit: unit.forward_flops),  # which begins there
}


def stage_cuts(plan: PlanFields, units: Sequence[Unit]) -> Cuts:
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
