"""Look up systems that plans are projected for, and what their links achieve."""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.projection.link import Link, Network
from hybridperf.spelling import did_you_mean
from hybridperf.system.catalog import Accelerator, known_accelerators
from hybridperf.tasks.schema import build_rows

__all__ = ["LinkClass", "System", "find_link", "find_system", "known_systems"]

_FILE: Final = Path(__file__).with_name("systems.toml")
_GIGA: Final = 1e9


@dataclass(frozen=True, slots=True)
class LinkClass:
    """A kind of link: what its vendor states of one direction, and what was measured on it."""

    name: str
    peak_gb_per_s: float
    achieved_gb_per_s: float  #: bus bandwidth of an all-reduce of large tensors
    latency_us: float  #: of one step of a ring
    source: str

    def link(self, shared_by: int = 1) -> Link:
        """Return the link that collectives achieve, shared by ``shared_by`` devices."""
        return Link(self.latency_us / 1e6, self.achieved_gb_per_s * _GIGA, shared_by)


@dataclass(frozen=True, slots=True)
class System:
    """A kind of node, of which a plan may use several."""

    name: str
    device: Accelerator
    devices_per_node: int
    inside: LinkClass  #: between the devices of a node
    between: LinkClass  #: of one adapter
    adapters_per_node: int

    @property
    def memory_bytes(self) -> int:
        """Return the capacity of one device's memory, with 10**9 bytes to the vendor's GB."""
        return round((self.device.memory_gb or 0.0) * _GIGA)

    @property
    def network(self) -> Network:
        """Return how the devices reach each other."""
        shared_by = max(1, math.ceil(self.devices_per_node / self.adapters_per_node))
        return Network(self.devices_per_node, self.inside.link(), self.between.link(shared_by))


def find_system(name: str) -> System:
    """Return the system ``name``.

    Raises:
        UserError: exit status 2 if no system has this name.
    """
    for system in known_systems():
        if system.name == name:
            return system
    names = [system.name for system in known_systems()]
    found = Finding(
        "projection.system",
        f"one of the systems {', '.join(names)}",
        f"{name!r:.60}",
        did_you_mean(name, names) or "choose one of them",
    )
    raise UserError(found, ExitCode.USAGE)


@functools.cache
def known_systems() -> tuple[System, ...]:
    """Return all systems in the catalogue."""
    devices = {each.name: each for each in known_accelerators()}
    return tuple(
        System(
            name=row["name"],
            device=devices[row["device"]],
            devices_per_node=row["devices_per_node"],
            inside=find_link(row["inside"]),
            between=find_link(row["between"]),
            adapters_per_node=row["adapters_per_node"],
        )
        for row in _table()["system"]
    )


def find_link(name: str) -> LinkClass:
    """Return the kind of link ``name`` of the catalogue.

    Raises:
        KeyError: if there is none.
    """
    return _links()[name]


@functools.cache
def _links() -> dict[str, LinkClass]:
    links = build_rows(LinkClass, _table()["link"], path=_FILE.name, at="link")
    return {link.name: link for link in links}


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
