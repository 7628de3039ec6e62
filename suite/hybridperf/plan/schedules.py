"""Pipeline schedules: order of passes, pipeline bubble and memory in closed form."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "SCHEDULES",
    "Action",
    "ActionKind",
    "Formula",
    "Pass",
    "Schedule",
    "all_forward_all_backward",
    "interleaved",
    "one_forward_one_backward",
    "zero_bubble_v",
]


class ActionKind(Enum):
    """Kind of an action on a micro-batch, a step's gradients, or a version of the weights."""

    RECEIVE_ACTIVATION = "receive activation"
    FORWARD = "forward"
    SEND_ACTIVATION = "send activation"
    RECEIVE_GRADIENT = "receive gradient"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward for inputs"  #: first half of a split backward pass
    BACKWARD_WEIGHT = "backward for weights"  #: second half of a split backward pass
    SEND_GRADIENT = "send gradient"
    REDUCE = "reduce"  #: start the all-reduce of the step's gradients over replicas
    AWAIT = "await"  #: wait for the averaged gradients of the stage
    UPDATE = "update"  #: wait for the averaged gradients of the step, and apply them
    PUBLISH = "publish"  #: make the updated weights available as a version
    RETIRE = "retire"  #: no later pass needs the version


class Action(NamedTuple):
    """One action of a program."""

    kind: ActionKind
    step: int  #: counted from the start of training
    microbatch: int = 0  #: index of the micro-batch in the step
    version: int = 0  #: version of the weights that the action uses, publishes or retires
    stage: int = 0  #: index of the stage in the pipeline; 0 for actions of a whole rank


class Pass(NamedTuple):
    """A forward or backward pass, or half of a split backward pass."""

    kind: ActionKind
    stage: int
    microbatch: int  #: index of the micro-batch since the last flush


# Diagrams below: a row is a rank, a column a unit of time, "." idle time. A pass is its kind (F
# forward, B backward with "-" for its second unit of time, I and W backward for inputs and for
# weights) and its micro-batch, in lower case for the rank's second stage.


def one_forward_one_backward(
    rank: int, ranks: int, stages: int, microbatches: int
) -> Iterator[Pass]:
    """Yield the passes of ``rank`` in the order of Narayanan et al. 2019, between two flushes.

    A rank runs one forward pass ahead for each rank after it::

        rank 0  F0 F1 F2 .  .  .  .  B0 -  F3 B1 -  .  B2 -  .  B3 -
        rank 1  .  F0 F1 .  .  B0 -  F2 B1 -  F3 B2 -  .  B3 -  .  .
        rank 2  .  .  F0 B0 -  F1 B1 -  F2 B2 -  F3 B3 -  .  .  .  .
    """
    del stages  # one
    return _single_stage(rank, min(ranks - 1 - rank, microbatches), microbatches)


def all_forward_all_backward(
    rank: int, ranks: int, stages: int, microbatches: int
) -> Iterator[Pass]:
    """Yield the passes of ``rank`` in the order of Huang et al. 2019, between two flushes.

    All ranks run all forward passes first::

        rank 0  F0 F1 F2 F3 .  .  .  .  .  .  B0 -  B1 -  B2 -  B3 -
        rank 1  .  F0 F1 F2 F3 .  .  .  B0 -  B1 -  B2 -  B3 -  .  .
        rank 2  .  .  F0 F1 F2 F3 B0 -  B1 -  B2 -  B3 -  .  .  .  .
    """
    del ranks, stages
    return _single_stage(rank, microbatches, microbatches)


def interleaved(rank: int, ranks: int, stages: int, microbatches: int) -> Iterator[Pass]:
    """Yield the passes of ``rank``, which has several ``stages``, between two flushes.

    Narayanan et al. 2021, for any number of micro-batches that divides into equal rounds of about
    ``ranks`` micro-batches. A rank runs a round through its stages one after another::

        rank 0  F0 F1 f0 f1 F2 .  b0 -  F3 b1 -  f2 B0 -  f3 B1 -  .  b2 -  .  b3 -  B2 -  B3 -
        rank 1  .  F0 F1 f0 b0 -  f1 b1 -  F2 B0 -  F3 B1 -  f2 b2 -  f3 b3 -  B2 -  B3 -  .  .
    """
    each = microbatches // max(1, microbatches // ranks)
    total = stages * microbatches
    forwards, backwards = (
        [
            Pass(kind, place * ranks + rank, number)
            for start in range(0, microbatches, each)
            for place in places
            for number in range(start, min(start + each, microbatches))
        ]
        for kind, places in (
            (ActionKind.FORWARD, range(stages)),
            (ActionKind.BACKWARD, range(stages - 1, -1, -1)),
        )
    )
    ahead = min(total, (stages - 1) * each + 2 * (ranks - 1 - rank))
    return _alternate(forwards, backwards, ahead)


# Passes of a rank of a V: kind, and 0 for the stage on the way down, 1 for the stage on the way up.
_F0: Final = (ActionKind.FORWARD, 0)
_F1: Final = (ActionKind.FORWARD, 1)
_DOWN: Final = ((ActionKind.BACKWARD_INPUT, 0), (ActionKind.BACKWARD_WEIGHT, 0))
_UP: Final = ((ActionKind.BACKWARD_INPUT, 1), (ActionKind.BACKWARD_WEIGHT, 1))


def zero_bubble_v(rank: int, ranks: int, stages: int, microbatches: int) -> Iterator[Pass]:
    """Yield the passes of ``rank``, which has two stages of a V, between two flushes.

    Qi et al. 2024, section 6. Backward passes for weights fill the bubble::

        rank 0  F0 F1 F2 F3 .  f0 i0 w0 f1 i1 w1 f2 i2 w2 I0 W0 f3 i3 w3 I1 W1 .  I2 W2 I3 W3
        rank 1  .  F0 F1 F2 f0 F3 f1 i0 w0 f2 i1 w1 I0 W0 f3 i2 w2 I1 W1 i3 w3 I2 .  I3 W2 W3
        rank 2  .  .  F0 f0 F1 f1 F2 f2 i0 w0 F3 I0 W0 f3 i1 w1 I1 W1 i2 w2 I2 i3 I3 W2 w3 W3

    With fewer than 2p - 1 micro-batches on p ranks, the order is the order for 2p - 1, without the
    passes of the missing micro-batches.
    """
    del stages  # two
    count, after = max(2 * ranks - 1, microbatches), ranks - rank
    order: Iterable[tuple[ActionKind, int]] = chain(
        [_F0] * (2 * after - 1),
        [_F1, _F0] * rank,
        [_F1, *_UP] * after,
        [_F0, *_DOWN, _F1, *_UP] * (count - ranks - after + 1),
        [*_DOWN, _F1, *_UP] * (after - 1),
        [_DOWN[0], _UP[0]] * rank,
        _DOWN * after,
        [_UP[1]] * rank,
        [_DOWN[1]] * rank,
    )
    numbers, at = Counter[tuple[ActionKind, int]](), (rank, 2 * ranks - 1 - rank)
    for each in order:
        number = numbers[each]
        numbers[each] += 1
        if number < microbatches:
            yield Pass(each[0], at[each[1]], number)


def _single_stage(stage: int, ahead: int, microbatches: int) -> Iterator[Pass]:
    """Yield the passes of a rank with one stage, ``ahead`` forward passes first."""
    forwards, backwards = (
        [Pass(kind, stage, number) for number in range(microbatches)]
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
    )
    return _alternate(forwards, backwards, ahead)


def _alternate(forwards: Sequence[Pass], backwards: Sequence[Pass], ahead: int) -> Iterator[Pass]:
    """Yield ``ahead`` forward passes, then forward and backward passes alternately."""
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - ahead :]


def _round_robin_placement(rank: int, ranks: int, stages: int) -> tuple[int, ...]:
    return tuple(range(rank, ranks * stages, ranks))


def _v_placement(rank: int, ranks: int, stages: int) -> tuple[int, ...]:
    return rank, ranks * stages - 1 - rank


def _equal_rounds(ranks: int, microbatches: int) -> int:
    """Round ``microbatches`` up to a number that divides into equal rounds."""
    rounds = max(1, microbatches // ranks)
    return microbatches if microbatches % rounds == 0 else -(-microbatches // ranks) * ranks


@dataclass(frozen=True, slots=True)
class Formula:
    """A closed form in p pipeline ranks, v stages on each and m micro-batches."""

    text: str  #: expression for docs/plans.md
    value: Callable[[int, int, int], float]  #: function of p, v and m


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule: placement of stages and order of passes.

    The engine looks up ``runtime`` by name, since the harness does not import torch.
    """

    name: str
    meaning: str
    runtime: str  #: class in ``torch.distributed.pipelining`` that executes the schedule
    source: str
    stages: int = 1  #: default number of stages per rank
    stages_vary: bool = False  #: whether a plan may set the number of stages
    split_backward: bool = False  #: whether gradients of inputs and of weights are separate passes
    placement: Callable[[int, int, int], tuple[int, ...]]
    #: (rank, pipeline ranks, stages per rank) -> stages of the rank, in the model's order
    order: Callable[[int, int, int, int], Iterator[Pass]]
    #: (rank, pipeline ranks, stages per rank, micro-batches) -> passes between two flushes
    next_microbatches: Callable[[int, int], int] = lambda ranks, microbatches: microbatches
    #: (pipeline ranks, micro-batches) -> the same number if valid, else a larger valid number
    microbatches: str = "any"  #: valid numbers m of micro-batches on p ranks, for docs
    idle_share: Formula
    #: pipeline bubble as a share of the step, if stages are equal, a backward pass takes as long as
    #: two forward passes (each half of a split backward pass as long as one), and sending is free
    activations: Formula
    #: peak activations of a rank, over the activations of all its stages for one micro-batch


_FLUSHED: Final = Formula("(p - 1) / (m + p - 1)", lambda p, v, m: (p - 1) / (m + p - 1))

#: schedules by name; the first is the default
SCHEDULES: Final = {
    schedule.name: schedule
    for schedule in (
        Schedule(
            name="1f1b",
            meaning="after a warm-up, forward and backward passes alternate",
            runtime="Schedule1F1B",
            source="Narayanan et al. 2019, with a flush each step",
            placement=_round_robin_placement,
            order=one_forward_one_backward,
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
            placement=_round_robin_placement,
            order=all_forward_all_backward,
            idle_share=_FLUSHED,
            activations=Formula("m", lambda p, v, m: m),
        ),
        Schedule(
            name="interleaved",
            meaning="`1f1b` over several stages on each rank, placed round-robin",
            runtime="ScheduleInterleaved1F1B",
            source="Narayanan et al. 2021",
            stages=2,
            stages_vary=True,
            placement=_round_robin_placement,
            order=interleaved,
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
            meaning="zero bubble: two stages on each rank, placed in a V; backward passes for "
            "weights fill the bubble",
            runtime="ScheduleZBVZeroBubble",
            source="Qi et al. 2024",
            stages=2,
            split_backward=True,
            placement=_v_placement,
            order=zero_bubble_v,
            idle_share=Formula(
                "1 - 3*m / (3*m + max((p - 1) / 2, 2*p - 1 - m))",
                lambda p, v, m: 1 - 3 * m / (3 * m + max((p - 1) / 2, 2 * p - 1 - m)),
            ),
            activations=Formula("min(m, p)", lambda p, v, m: min(m, p)),
        ),
    )
}
