"""A parallel plan in a few short words."""

from __future__ import annotations

from typing import Final, NamedTuple

from suite.plan import ParallelPlan
from suite.refusal import Refusal

__all__ = ["Chip", "plan_chips", "plan_ranks"]

_MEANINGS: Final = {
    "dp": "data parallel: replicas",
    "pp": "pipeline parallel: stages of each replica",
    "schedule": "order in which a stage works on its micro-batches",
    "microbatches": "parts of a replica's share of the batch",
}


class Chip(NamedTuple):
    """One property of a plan and what it means."""

    text: str
    meaning: str


def plan_chips(text: str) -> list[Chip]:
    """Return the properties of a plan's text, also of one that `ParallelPlan` would refuse."""
    return [_chip(part) for part in text.split(",") if part.strip()]


def plan_ranks(text: str) -> int | None:
    """Return the number of processes, or None where the text is no plan."""
    try:
        return ParallelPlan.parse(text).ranks if text else None
    except Refusal:
        return None


def _chip(part: str) -> Chip:
    key, _, value = (piece.strip() for piece in part.partition("="))
    words = {"schedule": value, "microbatches": f"{value} micro-batches"}
    return Chip(words.get(key, f"{key} {value}".strip()), _MEANINGS.get(key, key))
