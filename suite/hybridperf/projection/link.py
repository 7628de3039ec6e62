"""Links between devices, how long a message takes on them, and who shares them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hybridperf.projection.runtime_work import RuntimeWork

__all__ = ["Group", "Library", "Link", "Network"]

Library = Literal["nccl", "gloo"]  #: of collectives; what differs is in `collectives`


@dataclass(frozen=True, slots=True)
class Link:
    """A link in one direction: a message takes ``latency_s`` plus its bytes by the bandwidth.

    Hockney's model (1994), also written alpha + n x beta. Of ``shared_by`` devices that send at the
    same time each has its share of the bandwidth.
    """

    latency_s: float
    bytes_per_s: float
    shared_by: int = 1

    @property
    def own_bytes_per_s(self) -> float:
        """Return the bandwidth of one device while all that share the link send."""
        return self.bytes_per_s / self.shared_by

    def send_s(self, message_bytes: float) -> float:
        """Return the seconds from the start of a send to its arrival, while all that share send."""
        return self.latency_s + message_bytes / self.own_bytes_per_s


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks of a collective, and the links between them."""

    ranks: int
    ranks_per_node: int  #: of this group; all of them if it is on one node
    inside: Link  #: between two of them on one node
    between: Link | None = None  #: of one network adapter; None if the group is on one node
    adapters: float = 1.0  #: of each node for this group; less than 1 where groups share one
    library: Library = "nccl"

    @property
    def nodes(self) -> int:
        """Return the number of nodes that the group is on."""
        return self.ranks // self.ranks_per_node


@dataclass(frozen=True, slots=True)
class Network:
    """How the devices of a system reach each other: what `project` needs to know of it.

    The links of collectives are those of one step of a ring, as fitted to measured all-reduces;
    where they are None, such a step takes as long as a message.
    """

    devices_per_node: int
    inside: Link  #: between two devices of a node
    between: Link | None = None
    #: of one network adapter; ``shared_by`` is the number of a node's devices that share it
    library: Library = "nccl"
    inside_collectives: Link | None = None
    between_collectives: Link | None = None
    averaging_work: float = 0.0
    #: seconds by which computing beside an all-reduce takes longer, over its own
    runtimes: tuple[RuntimeWork, ...] = ()  #: what the trainer's software adds, where it is known

    def runtime(self, name: str | None) -> RuntimeWork | None:
        """Return the work of the runtime ``name``; None if it is not known, or there is none."""
        return next((each for each in self.runtimes if each.name == name), None)

    def group(self, ranks: int, stride: int) -> Group:
        """Return the group of ``ranks`` whose global ranks are ``stride`` apart.

        All devices of a node are busy: as many groups of the kind as fit on a node share it.
        """
        inside = self.inside_collectives or self.inside
        per_node = min(ranks, max(1, self.devices_per_node // stride))
        while ranks % per_node:  # nodes that hold unequal parts of a group: as the smallest part
            per_node -= 1
        if per_node == ranks and (stride * ranks <= self.devices_per_node or self.between is None):
            return Group(ranks, ranks, inside, library=self.library)
        between = self.between_collectives or self.between or inside
        groups = max(1, self.devices_per_node // per_node)
        adapters = self.devices_per_node / between.shared_by
        link = replace(between, shared_by=1)
        return Group(ranks, per_node, inside, link, adapters / groups, self.library)

    def hop(self, sender: int, receiver: int, stride: int) -> Link:
        """Return the link between devices of two global ranks, ``stride`` apart in a pipeline.

        Other pipelines' ranks of the same stage send at the same time, each its share.
        """
        own = self.devices_per_node
        if self.between is None or sender // own == receiver // own:
            return self.inside
        adapters = own / self.between.shared_by
        flows = max(1.0, min(stride, own) / adapters)
        return replace(self.between, bytes_per_s=self.between.bytes_per_s / flows, shared_by=1)
