"""How many steps and micro-batches to simulate so that the last steps are steady."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hybridperf.plan.actions import ActionKind
from hybridperf.projection.simulate import PASSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.plan.actions import Action
    from hybridperf.projection.simulate import Timeline

__all__ = ["Round", "fewer_microbatches", "settled_round", "settling_plans", "simulated_steps"]

_ROUNDS: Final = 3  #: of as many micro-batches as ranks, after which a pipeline keeps no more
_FEWEST: Final = 4  #: rounds that are simulated at first, and looked at for whether they settle
_MEASURED: Final = 2  #: steps of which the mean is taken


def fewer_microbatches(plan: ParallelPlan, rounds: int = _ROUNDS) -> ParallelPlan:
    """Return ``plan`` with ``rounds`` of micro-batches, if it has more and they are alike.

    A round has as many micro-batches as there are ranks. After three of them no more activations
    are kept; only with gpipe there are.
    """
    count = min(plan.microbatches, rounds * plan.pp + plan.microbatches % plan.pp)
    if plan.stages > 1 and plan.microbatches % plan.pp:  # rounds of another length
        count = plan.microbatches
    if plan.staleness and plan.dp > 1:  # averages may take as long as all passes of a step
        count = plan.microbatches
    return replace(plan, microbatches=count)


def settling_plans(plan: ParallelPlan) -> Iterator[ParallelPlan]:
    """Yield ``plan`` with more and more rounds of micro-batches, at last with all of them.

    With gpipe the forward passes of a step are over before its backward passes begin, so no round
    shows what all of them take.
    """
    rounds = _FEWEST
    while plan.schedule != "gpipe":
        fewer = fewer_microbatches(plan, rounds)
        if fewer.microbatches == plan.microbatches:
            break
        yield fewer
        rounds *= 2
    yield plan


@dataclass(frozen=True, slots=True)
class Round:
    """What one more round of micro-batches adds to a step."""

    seconds: float
    exposed_s: tuple[float, ...]  #: by rank
    spread_s: float  #: by how much the time that it adds may differ, now and later


def settled_round(timeline: Timeline, plan: ParallelPlan, step: int) -> Round | None:
    """Return what a round adds to ``step`` of the simulated ``plan``; None if no rounds are alike.

    The passes before the last forward pass of each rank are held against the same passes some
    rounds before, half of all. When a pass begins depends on earlier ones by sums and maxima, so if
    all passes of a round are later by at least d and by at most D, then so are all passes of any
    later round (Baccelli et al. 1992, *Synchronization and Linearity*: maps that are monotone and
    homogeneous). So the difference of both bounds the error of every round to come.
    """
    apart = plan.microbatches // plan.pp // 2
    later: list[float] = []
    exposed_s = []
    for rank, program in enumerate(timeline.programs):
        if (rounds := _last_rounds(program, plan, step, apart + 1)) is None:
            return None
        start_s, waits_s = timeline.start_s[rank], timeline.exposed_at_s[rank]
        first, last = rounds[0], rounds[-1]
        later += (start_s[at] - start_s[before] for before, at in zip(first, last, strict=True))
        counted = range(first[-1] + 1, last[-1] + 1)
        exposed_s.append(sum(s for at, s in waits_s.items() if at in counted) / apart)
    least, most = min(later), max(later)
    return Round((least + most) / 2 / apart, tuple(exposed_s), (most - least) / apart)


def _last_rounds(
    program: Sequence[Action], plan: ParallelPlan, step: int, count: int
) -> list[list[int]] | None:
    """Return where the passes of ``count`` rounds are that end with the last forward of ``step``.

    None if these rounds are not alike.
    """
    end = len(program) - 1
    while program[end].step != step or program[end].kind is not ActionKind.FORWARD:
        end -= 1
    places: list[int] = []
    each = 0  #: passes of a round, once it is known
    for at in range(end, -1, -1):
        if program[at].kind not in PASSES:
            continue
        if not each and _is_a_round_before(program[at], program[end], plan):
            each = len(places)
        if each and not _is_a_round_before(program[at], program[places[-each]], plan):
            return None
        places.append(at)
        if each and len(places) == count * each:
            places.reverse()
            return [places[start : start + each] for start in range(0, len(places), each)]
    return None


def _is_a_round_before(one: Action, other: Action, plan: ParallelPlan) -> bool:
    """Return whether ``one`` is the same pass as ``other``, of the round before."""
    steps = 0 if plan.flush else other.step - one.step
    same = (one.kind, one.stage, one.step + steps) == (other.kind, other.stage, other.step)
    return same and other.microbatch + steps * plan.microbatches - one.microbatch == plan.pp


def simulated_steps(plan: ParallelPlan) -> tuple[range, range]:
    """Return the steps to simulate, and those of them whose mean is the steady state.

    The first ones fill the pipeline and the versions of the weights; the last one drains it. The
    first stage may go on for as many steps before it waits for later ones that average longer.
    """
    fill = plan.staleness * (1 + (plan.pp > 1)) + -(-(plan.pp - 1) // plan.microbatches) * (
        not plan.flush
    )
    return range(fill + 2 + _MEASURED), range(fill + 1, fill + 1 + _MEASURED)
