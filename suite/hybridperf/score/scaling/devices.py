"""Count the devices used by a result, and detect ranks that share a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hybridperf.errors import UserError
from hybridperf.plan import ParallelPlan
from hybridperf.system.counts import accelerators_per_node, device_count, node_count
from hybridperf.untrusted import DEVICES_CAP, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Devices", "devices_used", "plan_ranks"]


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices used and available for a result."""

    used: int
    available: int
    kind: Literal["accelerators", "cores"]

    @property
    def oversubscribed(self) -> bool:
        """Tell whether ranks shared a device, which makes their times invalid for scaling."""
        return self.used > self.available


def devices_used(plan: str, description: Mapping[str, object] | None) -> Devices | None:
    """Return the devices used by a result under ``plan``; None if unknown.

    A rank uses one accelerator, or an equal share of all cores, since the harness distributes the
    cores among the ranks' threads. A result without a plan (MLPerf's) used the whole system.
    """
    facts = description or {}
    available = device_count(facts)
    nodes, cores = node_count(facts), _usable_cores(facts)
    on_accelerators = bool(accelerators_per_node(facts))
    if not on_accelerators and plan and nodes is not None and cores is not None:
        available = nodes * cores
    ranks = plan_ranks(plan) if plan else available
    if not available or ranks is None:
        return None
    if on_accelerators or not plan:
        return Devices(ranks, available, "accelerators" if on_accelerators else "cores")
    return Devices(ranks * max(1, available // ranks), available, "cores")


def plan_ranks(text: str) -> int | None:
    """Return the number of ranks of a plan; None if ``text`` is not a valid plan."""
    try:
        return ParallelPlan.parse(text).ranks if text else None
    except UserError:
        return None


def _usable_cores(facts: Mapping[str, object]) -> int | None:
    """Return the number of cores available to the runs, by affinity and quota; None if unknown."""
    machine: object = facts
    for key in ("hybridperf", "processor", "usable_cores"):
        machine = machine.get(key) if isinstance(machine, dict) else None
    return whole(machine, 1, DEVICES_CAP)
