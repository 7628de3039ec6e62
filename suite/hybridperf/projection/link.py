"""Links between devices: how long a message takes, and over what the devices of a system reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Group", "Library", "Link", "Network"]

Library = Literal["nccl", "gloo"]  #: of collectives: what differs between them is in `collectives`


@dataclass(frozen=True, slots=True)
class Link:
    """A link in one direction: a message takes ``latency_s`` plus its bytes by the bandwidth.

    That is Hockney's model (1994), also written alpha + n x beta.
    """

    latency_s: float
    bytes_per_s: float
    shared_by: int = 1  #: devices that send over it at the same time, each at its share

    @property
    def own_bytes_per_s(self) -> float:
        """Return the bandwidth that each of the devices gets while all of them send."""
        return self.bytes_per_s / self.shared_by

    def send_s(self, message_bytes: float) -> float:
        """Return the seconds from the start of a send to its arrival."""
        return self.latency_s + message_bytes / self.own_bytes_per_s


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a collective and the links between them."""

    ranks: int
    inside: Link  #: between two ranks on one node
    between: Link | None = None  #: from one rank to one on another node; None if all are on one
    ranks_per_node: int = 1  #: of this group


@dataclass(frozen=True, slots=True)
class Network:
    """How the devices of a system reach each other: what `project` needs to know of it.

    ``inside_collectives`` and ``between_collectives`` are the links of one step of a ring, fitted
    to measured all-reduces; where they are None, a ring's steps take as long as messages.
    """

    devices_per_node: int
    inside: Link  #: between two devices of a node
    between: Link | None = None
    #: from a device to one on another node; ``shared_by`` is the number of devices of a node that
    #: share one adapter
    library: Library = "nccl"
    inside_collectives: Link | None = None
    between_collectives: Link | None = None
