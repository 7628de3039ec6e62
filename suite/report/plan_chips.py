"""A parallel plan in a few short words."""

from __future__ import annotations

from typing import Final, NamedTuple

from suite.scores.scaling.devices import plan_ranks

__all__ = ["Chip", "plan_chips", "plan_ranks"]

_MEANINGS: Final = {
    "dp": "data parallel: replicas",
    "sync": "when replicas average their gradients",
    "zero": "what replicas share out: optimiser state (1), gradients too (2), parameters too (3)",
    "shard": "replicas that share one copy of what zero shares out",
    "offload": "where what zero shares out rests between its uses",
    "tp": "tensor parallel: ranks that each hold a part of a layer",
    "sp": "sequence parallel: between split layers, a rank holds a part of the tokens",
    "pp": "pipeline parallel: ranks of each replica's pipeline",
    "schedule": "order in which a stage works on its micro-batches",
    "stages": "stages of the pipeline on each rank",
    "microbatches": "parts of a replica's share of the batch",
    "recompute": "units whose activations are computed again in the backward pass",
    "precision": "of matrix products and convolutions",
    "compile": "each unit is compiled",
    "bn": "over what BatchNorm takes its statistics",
}


class Chip(NamedTuple):
    """One property of a plan and what it means."""

    text: str
    meaning: str


def plan_chips(text: str) -> list[Chip]:
    """Return the properties of a plan's text, also of one that `ParallelPlan` would refuse."""
    return [_chip(part) for part in text.split(",") if part.strip()]


def _chip(part: str) -> Chip:
    key, _, value = (piece.strip() for piece in part.partition("="))
    words = {
        "schedule": value,
        "precision": value,
        "stages": f"{value} stages a rank",
        "microbatches": f"{value} micro-batches",
    }
    text = key if value == "on" else words.get(key, f"{key} {value}".strip())
    return Chip(text, _MEANINGS.get(key, key))
