"""What all nodes of a run must have in common: order, data, code, and the hardware's kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.findings import Finding
from suite.runs.consistency import configuration
from suite.runs.provenance import code_hashes
from suite.tasks.registry import is_of_suite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from suite.runs.order import Order
    from suite.tasks.task import Task

__all__ = ["agreed", "difference", "hardware"]

_HARDWARE: Final = (
    "accelerators_per_node",
    "accelerator_model_name",
    "accelerator_memory_capacity",
    "host_processor_model_name",
    "framework",
)
_LONGEST: Final = 80  #: characters of a value that is shown


def agreed(order: Order, task: Task) -> dict[str, object]:
    """Return what an order, the data and the code behind it are on this node.

    A task of the suite is read where node 0 has it.
    """
    place = order.task_path.absolute() if is_of_suite(order.task_path) else ""
    return {
        "nodes": order.nodes.count,
        **configuration(order, task),
        "task_path": str(place),
        **code_hashes(order.launched),
    }


def hardware(description: Mapping[str, object]) -> dict[str, object]:
    """Return what of a node's description must be the same on all nodes."""
    return {key: description[key] for key in _HARDWARE}


def difference(
    ours: tuple[Mapping[str, object], ...], theirs: tuple[Mapping[str, object], ...], node: int
) -> Finding | None:
    """Return the first difference between node 0 and another, order and code before hardware."""
    remedies = ("give every node the same command and code", "choose nodes of one kind")
    for remedy, own, others in zip(remedies, ours, theirs, strict=True):
        for key, value in own.items():
            if others.get(key) != value:
                expected = f"{key} {value!s:.{_LONGEST}} on node {node} as on node 0"
                found = f"{others.get(key)!s:.{_LONGEST}}"
                return Finding("nodes.same", expected, found or "nothing", remedy)
    return None
