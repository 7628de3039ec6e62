"""Read the counts of nodes, accelerators and cores in an untrusted system description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.untrusted import DEVICES_CAP, stated_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["accelerator_count", "accelerators_per_node", "device_count", "node_count"]


def node_count(description: Mapping[str, object]) -> int | None:
    """Return the number of nodes, at least 1; None if not stated."""
    return stated_whole(description.get("number_of_nodes"), 1)


def accelerators_per_node(description: Mapping[str, object]) -> int | None:
    """Return the number of accelerators per node, which may be 0; None if not stated."""
    return stated_whole(description.get("accelerators_per_node"))


def accelerator_count(description: Mapping[str, object] | None) -> int | None:
    """Return the number of accelerators of all nodes, which may be 0; None if unknown.

    ``number_of_nodes`` does not default to 1, since MLPerf requires it.
    """
    stated = description or {}
    return _product(node_count(stated), accelerators_per_node(stated))


def device_count(description: Mapping[str, object] | None) -> int | None:
    """Return the number of accelerators, or else cores, of all nodes; None if unknown."""
    stated = description or {}
    if accelerators_per_node(stated):
        return accelerator_count(stated)
    cores = stated_whole(stated.get("host_processor_core_count"), 1)
    sockets = stated_whole(stated.get("host_processors_per_node"), 1) or 1
    return _product(node_count(stated), sockets, cores)


def _product(*counts: int | None) -> int | None:
    total = 1
    for count in counts:
        if count is None:
            return None
        total *= count
    return total if total <= DEVICES_CAP else None
