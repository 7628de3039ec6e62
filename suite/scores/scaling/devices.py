"""How many devices a result used, and whether ranks had to share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from suite.plan import ParallelPlan
from suite.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Devices", "device_count", "devices_used", "plan_ranks", "whole_fact"]


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a result was made on."""

    used: int
    available: int
    kind: Literal["accelerators", "cores"]

    @property
    def oversubscribed(self) -> bool:
        """Tell whether ranks shared a device: their time says nothing of scaling."""
        return self.used > self.available


def devices_used(plan: str, description: Mapping[str, object] | None) -> Devices | None:
    """Return the devices that a result under ``plan`` used; None where that is unknown.

    A rank takes one accelerator, or as many cores as there are for each: the harness gives its
    threads all of them. A result without a plan, as MLPerf's are, used the whole system.
    """
    facts = description or {}
    available = device_count(facts)
    cores = _usable_cores(facts)
    on_accelerators = bool(whole_fact(facts, "accelerators_per_node"))
    if not on_accelerators and plan and cores is not None:
        available = (whole_fact(facts, "number_of_nodes") or 1) * cores
    ranks = plan_ranks(plan) if plan else available
    if not available or ranks is None:
        return None
    if on_accelerators or not plan:
        return Devices(ranks, available, "accelerators" if on_accelerators else "cores")
    return Devices(ranks * max(1, available // ranks), available, "cores")


def device_count(description: Mapping[str, object] | None) -> int | None:
    """Return how many devices the whole system has: accelerators, or cores where there are none."""
    facts = description or {}
    nodes = whole_fact(facts, "number_of_nodes") or 1
    if accelerators := whole_fact(facts, "accelerators_per_node"):
        return nodes * accelerators
    cores = whole_fact(facts, "host_processor_core_count")
    return nodes * (whole_fact(facts, "host_processors_per_node") or 1) * cores if cores else None


def plan_ranks(text: str) -> int | None:
    """Return the number of processes, or None where the text is no plan."""
    try:
        return ParallelPlan.parse(text).ranks if text else None
    except Refusal:
        return None


def whole_fact(facts: Mapping[str, object], key: str) -> int | None:
    """Return a whole number of a description, which may be text; None where it is none."""
    value = str(facts.get(key)).strip().removesuffix(".0")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else None


def _usable_cores(facts: Mapping[str, object]) -> int | None:
    """Return the cores that the runs were allowed to use, which may be fewer than there are."""
    machine: object = facts
    for key in ("hybridperf", "processor", "usable_cores"):
        machine = machine.get(key) if isinstance(machine, dict) else None
    return machine if type(machine) is int and 0 < machine < 10**7 else None
