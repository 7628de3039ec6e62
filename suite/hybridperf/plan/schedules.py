"""The registry of pipeline schedules, with their properties in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.plan import orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridperf.plan.orders import Pass

__all__ = ["SCHEDULES", "Formula", "Schedule"]


def _in_turns(rank: int, ranks: int, stages: int) -> tuple[int, ...]:
    return tuple(range(rank, ranks * stages, ranks))


def _in_a_v(rank: int, ranks: int, stages: int) -> tuple[int, ...]:
    return rank, ranks * stages - 1 - rank


def _any(ranks: int, microbatches: int) -> int:
    return microbatches


def _equal_rounds(ranks: int, microbatches: int) -> int:
    """Round ``microbatches`` up to a number that torch can divide into equal rounds."""
    rounds = max(1, microbatches // ranks)
    return microbatches if microbatches % rounds == 0 else -(-microbatches // ranks) * ranks


@dataclass(frozen=True, slots=True)
class Formula:
    """A closed form in p pipeline ranks, v stages on each and m micro-batches."""

    text: str  #: as docs/plans.md prints it
    value: Callable[[int, int, int], float]  #: of p, v and m


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The order in which the ranks of a pipeline work on their micro-batches.

    The engine looks up ``runtime`` by name, since the harness does not import torch.
    """

    name: str
    meaning: str
    runtime: str  #: class in ``torch.distributed.pipelining`` that executes it
    source: str
    stages: int = 1  #: default number of stages on each rank
    stages_vary: bool = False  #: whether a plan may set the number of stages
    split_backward: bool = False  #: whether input and weight gradients are in separate passes
    placement: Callable[[int, int, int], tuple[int, ...]]
    #: (rank, pipeline ranks, stages on each) -> stages of the rank, in the model's order
    order: Callable[[int, int, int, int], Iterator[Pass]]
    #: (rank, pipeline ranks, stages on each, micro-batches) -> its passes between two flushes
    next_microbatches: Callable[[int, int], int] = _any
    #: (pipeline ranks, micro-batches) -> the same number if it can run, else a larger one that can
    microbatches: str = (
        "any"  #: the numbers m of micro-batches that p ranks can run, as docs print them
    )
    idle_share: Formula
    #: fraction of a rank's time in a step, if stages are equal, a backward pass takes as long as
    #: two forward passes (each half of a split one as long as one), and sending takes no time
    activations: Formula
    #: peak memory of a rank, in units of the activations of all its stages for one micro-batch


_FLUSHED: Final = Formula("(p - 1) / (m + p - 1)", lambda p, v, m: (p - 1) / (m + p - 1))

#: by name; the first is the default
SCHEDULES: Final = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            name="1f1b",
            meaning="after a warm-up, one forward pass and one backward pass in turns",
            runtime="Schedule1F1B",
            source="Narayanan et al. 2019, with a flush each step",
            placement=_in_turns,
            order=orders.one_forward_one_backward,
            next_microbatches=lambda ranks, microbatches: max(ranks, microbatches),
            microbatches="at least p",
            idle_share=_FLUSHED,
            activations=Formula("p", lambda p, v, m: p),
        ),
        Schedule(
            name="gpipe",
            meaning="all forward passes, then all backward passes",
            runtime="ScheduleGPipe",
            source="Huang et al. 2019",
            placement=_in_turns,
            order=orders.all_forward_all_backward,
            idle_share=_FLUSHED,
            activations=Formula("m", lambda p, v, m: m),
        ),
        Schedule(
            name="interleaved",
            meaning="`1f1b` over several stages on each rank, placed in turns",
            runtime="ScheduleInterleaved1F1B",
            source="Narayanan et al. 2021",
            stages=2,
            stages_vary=True,
            placement=_in_turns,
            order=orders.interleaved,
            next_microbatches=_equal_rounds,
            microbatches="a multiple of max(1, m // p)",
            idle_share=Formula(
                "1 - v*m / (v*max(m, p) + min(m, p) - 1)",
                lambda p, v, m: 1 - v * m / (v * max(m, p) + min(m, p) - 1),
            ),
            activations=Formula(
                "min(m, ((v - 1) * m / max(1, m // p) + 2*p - 1) / v)",
                lambda p, v, m: min(m, ((v - 1) * m / max(1, m // p) + 2 * p - 1) / v),
            ),
        ),
        Schedule(
            name="zbv",
            meaning="zero bubble: two stages on each rank, placed in a V; "
            "gradients of weights are computed where a rank would wait",
            runtime="ScheduleZBVZeroBubble",
            source="Qi et al. 2024",
            stages=2,
            split_backward=True,
            placement=_in_a_v,
            order=orders.zero_bubble_v,
            idle_share=Formula(
                "1 - 3*m / (3*m + max((p - 1) / 2, 2*p - 1 - m))",
                lambda p, v, m: 1 - 3 * m / (3 * m + max((p - 1) / 2, 2 * p - 1 - m)),
            ),
            activations=Formula("min(m, p)", lambda p, v, m: min(m, p)),
        ),
    )
}
