"""Ranks that admit what is not known: results whose intervals overlap share a range of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suite.scores.interval import Interval

__all__ = ["Rank", "rank_ranges"]


@dataclass(frozen=True, slots=True)
class Rank:
    """The ranks that a result may have, counted from 1."""

    best: int
    worst: int

    def __str__(self) -> str:
        return f"{self.best}" if self.best == self.worst else f"{self.best}–{self.worst}"  # noqa: RUF001 - a range takes an en dash


def rank_ranges(intervals: Sequence[Interval | None]) -> list[Rank]:
    """Return the rank range of each of ``intervals``, in the given order.

    One result is certainly faster than another where its interval ends before the other's begins.
    Nothing is certain of a result without an interval.
    """
    return [
        Rank(
            best=1 + sum(_certainly_faster(other, own) for other in intervals),
            worst=len(intervals) - sum(_certainly_faster(own, other) for other in intervals),
        )
        for own in intervals
    ]


def _certainly_faster(one: Interval | None, other: Interval | None) -> bool:
    return one is not None and other is not None and one.high < other.low
