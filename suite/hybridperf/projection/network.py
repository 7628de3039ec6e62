"""Links between devices, and the seconds and bytes of collectives over them.

With W ranks, N nodes, k ranks on each of them, n bytes, latency a and bandwidth b of a link:

===================  ===============================================  ==========================
all-reduce           seconds                                          bytes sent by each rank
===================  ===============================================  ==========================
ring                 2 (W - 1) (a + n / (W b))                        2 (W - 1) / W n
tree                 2 ceil(log2 W) a + 2 n / b                       2 n
hierarchical         2 (k - 1) (a + n / (k b)) in the node and        2 (k - 1) / k n
                     2 (N - 1) (a + n / (k N b)) between nodes        + 2 (N - 1) / N n / k
===================  ===============================================  ==========================

Rings follow Patarasuk and Yuan (2009), at the pace of their slowest link. Trees are pairs of
pipelined binary trees in which each rank is a leaf of one (Sanders, Speck and Träff 2009), as NCCL
builds them between nodes, above chains in the nodes (Jeaugey 2019). Hierarchical all-reduces
scatter in the node, add up between nodes in k rings at once, and gather in the node (Jia et al.
2018). A reduce-scatter or an all-gather is half of a ring or of a hierarchical all-reduce.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ALL_REDUCES",
    "Algorithm",
    "Cost",
    "Library",
    "Network",
    "NetworkLink",
    "RankGroup",
    "all_gather",
    "all_reduce",
    "broadcast",
    "node_sent_bytes",
    "reduce_scatter",
]

Library = Literal["nccl", "gloo"]  #: library of collectives


@dataclass(frozen=True, slots=True)
class NetworkLink:
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
class RankGroup:
    """The ranks of a collective, and the links between them."""

    ranks: int
    ranks_per_node: int  #: ranks of this group on a node; all of them if it is on one node
    inside: NetworkLink  #: link between two ranks on one node
    between: NetworkLink | None = None  #: one network adapter; None if the group is on one node
    adapters: float = 1.0  #: adapters of each node for this group; below 1 where groups share one
    library: Library = "nccl"

    @property
    def nodes(self) -> int:
        """Return the number of nodes that the group is on."""
        return self.ranks // self.ranks_per_node


@dataclass(frozen=True, slots=True)
class Network:
    """Links and libraries by which the devices of a system reach each other.

    The links of collectives model one step of a ring and are fitted to measured all-reduces; where
    they are None, a step of a ring takes as long as a message.
    """

    devices_per_node: int
    inside: NetworkLink  #: link between two devices of a node
    between: NetworkLink | None = None
    #: link of one network adapter; ``shared_by`` is the number of a node's devices that share it
    library: Library = "nccl"
    inside_collectives: NetworkLink | None = None
    between_collectives: NetworkLink | None = None
    averaging_work: float = 0.0
    #: slowdown of computation that overlaps an all-reduce, over the time of the all-reduce
    pass_s: float = 0.0  #: overhead of the trainer's software in each pass of a pipeline
    bucket_s: float = 0.0  #: overhead of software in each collective that averages gradients

    def group(self, ranks: int, stride: int) -> RankGroup:
        """Return the group of ``ranks`` whose global ranks are ``stride`` apart.

        All devices of a node are busy: as many groups of the kind as fit on a node share it.
        """
        inside = self.inside_collectives or self.inside
        per_node = min(ranks, max(1, self.devices_per_node // stride))
        while ranks % per_node:  # nodes that hold unequal parts of a group: as the smallest part
            per_node -= 1
        if per_node == ranks and (stride * ranks <= self.devices_per_node or self.between is None):
            return RankGroup(ranks, ranks, inside, library=self.library)
        between = self.between_collectives or self.between or inside
        groups = max(1, self.devices_per_node // per_node)
        adapters = self.devices_per_node / between.shared_by
        link = replace(between, shared_by=1)
        return RankGroup(ranks, per_node, inside, link, adapters / groups, self.library)

    def hop(self, sender: int, receiver: int, stride: int) -> NetworkLink:
        """Return the link between devices of two global ranks, ``stride`` apart in a pipeline.

        Other pipelines' ranks of the same stage send at the same time, each its share.
        """
        own = self.devices_per_node
        if self.between is None or sender // own == receiver // own:
            return self.inside
        adapters = own / self.between.shared_by
        flows = max(1.0, min(stride, own) / adapters)
        return replace(self.between, bytes_per_s=self.between.bytes_per_s / flows, shared_by=1)


Algorithm = Literal["ring", "tree", "hierarchical"]


class Cost(NamedTuple):
    """Cost of a collective."""

    seconds: float
    sent_bytes: float  #: bytes sent by each rank; by an inner rank of a tree


def all_reduce(message_bytes: float, group: RankGroup, algorithm: Algorithm | None = None) -> Cost:
    """Return the cost of adding up ``message_bytes`` of each rank, on each rank.

    Without an ``algorithm``, the fastest, which NCCL picks from its own model of costs; for gloo,
    the ring, which is its only one.
    """
    if group.ranks == 1:
        return _NOTHING
    if algorithm is None and group.library == "gloo":
        algorithm = "ring"
    if algorithm is not None:
        return ALL_REDUCES[algorithm](message_bytes, group)
    return min(cost(message_bytes, group) for cost in ALL_REDUCES.values())


def node_sent_bytes(message_bytes: float, places: Sequence[int], algorithm: Algorithm) -> float:
    """Return the bytes that a node sends to others in an all-reduce of ``message_bytes``.

    ``places`` are the nodes of the ranks, [rank]. A ring leaves a node as often as the next rank is
    on another one: once where neighbours share a node, and once for each rank where they alternate.
    """
    ranks, nodes = len(places), len(set(places))
    if algorithm == "hierarchical":
        return 2 * (nodes - 1) / nodes * message_bytes
    following = (*places[1:], places[0])
    links = sum(here != there for here, there in zip(places, following, strict=True))
    return 2 * (ranks - 1) / ranks * message_bytes * links / nodes


def reduce_scatter(message_bytes: float, group: RankGroup) -> Cost:
    """Return the cost of adding up ``message_bytes`` of each rank, a part of them on each rank.

    In gloo it is an all-reduce of which each rank keeps a part: one of all that ``message_bytes``
    are, if they are one tensor, as they always are here. (Of a list of tensors, one for each.)
    """
    if group.library == "gloo":
        return all_reduce(message_bytes, group)
    return all_gather(message_bytes, group)


def all_gather(message_bytes: float, group: RankGroup) -> Cost:
    """Return the cost of giving each rank the parts of all, together ``message_bytes``."""
    if group.ranks == 1:
        return _NOTHING
    algorithms = (_ring,) if group.library == "gloo" else (_ring, _hierarchical)
    whole = min(cost(message_bytes, group) for cost in algorithms)
    return Cost(whole.seconds / 2, whole.sent_bytes / 2)


def broadcast(message_bytes: float, group: RankGroup) -> Cost:
    """Return the cost of giving ``message_bytes`` of one rank to all, along a pipelined tree."""
    if group.ranks == 1:
        return _NOTHING
    whole = _tree(message_bytes, group)
    return Cost(whole.seconds / 2, whole.sent_bytes / 2)


def _ring(message_bytes: float, group: RankGroup) -> Cost:
    latency_s, bytes_per_s = _slowest(group, 1.0)
    steps = 2 * (group.ranks - 1)
    sent_bytes = steps * message_bytes / group.ranks
    return Cost(steps * latency_s + sent_bytes / bytes_per_s, sent_bytes)


def _tree(message_bytes: float, group: RankGroup) -> Cost:
    _, bytes_per_s = _slowest(group, group.ranks_per_node)
    if group.between is None:
        latency_s = math.ceil(math.log2(group.ranks)) * group.inside.latency_s
    else:
        latency_s = (group.ranks_per_node - 1) * group.inside.latency_s
        latency_s += math.ceil(math.log2(group.nodes)) * group.between.latency_s
    return Cost(2 * (latency_s + message_bytes / bytes_per_s), 2 * message_bytes)


def _hierarchical(message_bytes: float, group: RankGroup) -> Cost:
    if group.between is None:
        return _ring(message_bytes, group)
    own, nodes = group.ranks_per_node, group.nodes
    part_bytes = message_bytes / own
    inner = 2 * (own - 1) * (group.inside.latency_s + part_bytes / group.inside.own_bytes_per_s)
    each = group.between.own_bytes_per_s * min(1.0, group.adapters / own)
    outer = 2 * (nodes - 1) * (group.between.latency_s + part_bytes / nodes / each)
    sent_bytes = 2 * (own - 1) * part_bytes + 2 * (nodes - 1) * part_bytes / nodes
    return Cost(inner + outer, sent_bytes)


def _slowest(group: RankGroup, flows: float) -> tuple[float, float]:
    """Return latency and bandwidth of a group's slowest link, with ``flows`` out of each node."""
    if group.between is None:
        return group.inside.latency_s, group.inside.own_bytes_per_s
    between = group.between.own_bytes_per_s * min(flows, group.adapters)
    if group.ranks_per_node == 1:
        return group.between.latency_s, between
    return (
        max(group.inside.latency_s, group.between.latency_s),
        min(group.inside.own_bytes_per_s, between),
    )


_NOTHING: Final = Cost(0.0, 0.0)  #: cost for one rank

ALL_REDUCES: Final[Mapping[Algorithm, Callable[[float, RankGroup], Cost]]] = {
    "ring": _ring,
    "tree": _tree,
    "hierarchical": _hierarchical,
}
