"""How long collectives take, and how many bytes each rank sends in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from hybridperf.projection.link import Group, Library, Link

__all__ = [
    "Algorithm",
    "Cost",
    "all_gather",
    "all_reduce",
    "broadcast",
    "reduce_scatter",
    "send",
]

Algorithm = Literal["ring", "tree", "hierarchical", "best"]


class Cost(NamedTuple):
    """What a collective costs."""

    seconds: float
    sent_bytes: float  #: by the rank that sends most


def send(message_bytes: float, link: Link) -> Cost:
    """Return the cost of one message from a device to another."""
    raise NotImplementedError


def all_reduce(message_bytes: float, group: Group, algorithm: Algorithm = "best") -> Cost:
    """Return the cost of an all-reduce of ``message_bytes``, of which each rank has as many."""
    raise NotImplementedError


def reduce_scatter(message_bytes: float, group: Group, library: Library = "nccl") -> Cost:
    """Return the cost of a reduce-scatter of ``message_bytes`` before it, on each rank."""
    raise NotImplementedError


def all_gather(message_bytes: float, group: Group) -> Cost:
    """Return the cost of an all-gather of ``message_bytes`` after it, on each rank."""
    raise NotImplementedError


def broadcast(message_bytes: float, group: Group) -> Cost:
    """Return the cost of a broadcast of ``message_bytes`` from one rank to all others."""
    raise NotImplementedError
