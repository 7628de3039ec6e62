"""The orders in which the ranks of a pipeline compute, one generator for each schedule."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan.actions import ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Pass",
    "all_forward_all_backward",
    "interleaved",
    "one_forward_one_backward",
    "zero_bubble_v",
]


class Pass(NamedTuple):
    """A forward or backward pass, or half of a split backward pass."""

    kind: ActionKind
    stage: int
    microbatch: int  #: counted from the last flush


def one_forward_one_backward(
    rank: int, ranks: int, stages: int, microbatches: int
) -> Iterator[Pass]:
    """Yield the passes of ``rank`` in the order of Narayanan et al. 2019, between two flushes."""
    del stages  # one
    return _one_stage(rank, min(ranks - 1 - rank, microbatches), microbatches)


def all_forward_all_backward(
    rank: int, ranks: int, stages: int, microbatches: int
) -> Iterator[Pass]:
    """Yield the passes of ``rank`` in the order of Huang et al. 2019, between two flushes."""
    del ranks, stages  # all ranks do the same
    return _one_stage(rank, microbatches, microbatches)


def interleaved(rank: int, ranks: int, stages: int, microbatches: int) -> Iterator[Pass]:
    """Yield the passes of ``rank``, which has several ``stages``, between two flushes.

    Narayanan et al. 2021, for any number of micro-batches that splits into equal rounds of about as
    many as there are ranks: a rank takes each round through one of its stages after another.
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
    return _in_turns(forwards, backwards, ahead)


# What a rank of a V computes in turn: a kind of pass in the stage on the way down, or up.
_F0: Final = (ActionKind.FORWARD, 0)
_F1: Final = (ActionKind.FORWARD, 1)
_DOWN: Final = ((ActionKind.BACKWARD_INPUT, 0), (ActionKind.BACKWARD_WEIGHT, 0))
_UP: Final = ((ActionKind.BACKWARD_INPUT, 1), (ActionKind.BACKWARD_WEIGHT, 1))


def zero_bubble_v(rank: int, ranks: int, stages: int, microbatches: int) -> Iterator[Pass]:
    """Yield the passes of ``rank``, which has two stages of a V, between two flushes.

    Qi et al. 2024, section 6. The order is that of at least 2p - 1 micro-batches in a pipeline of p
    ranks, without those that there are not.
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


def _one_stage(stage: int, ahead: int, microbatches: int) -> Iterator[Pass]:
    """Yield the passes of a rank with one stage, ``ahead`` forward passes first."""
    forwards, backwards = (
        [Pass(kind, stage, number) for number in range(microbatches)]
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
    )
    return _in_turns(forwards, backwards, ahead)


def _in_turns(forwards: Sequence[Pass], backwards: Sequence[Pass], ahead: int) -> Iterator[Pass]:
    """Yield ``ahead`` forward passes, then a forward and a backward pass in turns, and the rest."""
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - ahead :]
