"""The projection of a run's step before it starts, and the cuts of ``cut=ampa``."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.project import stated
from hybridperf.projection.search import Work
from hybridperf.projection.systems import known_systems
from hybridperf.run.files import canonical_json
from hybridperf.run.profiles import cached_profile, cached_units
from hybridperf.run.provenance import has_module
from hybridperf.run.request import require_valid
from hybridperf.system.accelerators import device_memory_bytes, usable_devices
from hybridperf.system.catalog import find_accelerator
from hybridperf.tasks.registry import in_suite, read_task

if TYPE_CHECKING:
    from hybridperf.projection.units import UnitTable, UnitTiming
    from hybridperf.run.request import RunRequest

__all__ = ["Source", "is_projectable", "project_run", "projection_source", "with_projected_cuts"]

_MODULES: Final = ("units", "profile")  #: modules of a trainer whose tasks can be projected
_NO_LINK: Final = NetworkLink(0.0, math.inf)  #: link of a single rank, which sends nothing


@dataclass(frozen=True, slots=True)
class Source:
    """The inputs of a projection."""

    units: UnitTable
    timing: UnitTiming
    network: Network
    facts: dict[str, object]  #: provenance of the times, in the format of docs/log.md


def is_projectable(request: RunRequest) -> bool:
    """Return whether the trainer that the request launches can count and time the task's units."""
    trainer = read_task(request.task_path).trainer
    if request.launched != trainer:
        return False
    return in_suite(request.task_path) or all(has_module(trainer, each) for each in _MODULES)


def projection_source(request: RunRequest) -> Source | None:
    """Return unit times and links of this machine for the request; None if they are unknown."""
    if not is_projectable(request) or (units := cached_units(request.task_path)) is None:
        return None
    return _profile_source(request, units) or _device_source(request, units)


def project_run(request: RunRequest) -> dict[str, object]:
    """Return the projection of a step in the log's format; empty if unit times are unknown."""
    if (source := projection_source(request)) is None:
        return {}
    work = Work.of_task(request.task(), source.units, source.timing, source.network)
    projection = work.project(request.plan, with_timeline=True)
    entry = stated(projection, source.facts)
    if (nodes := request.nodes.count) > 1:
        of_node = dataclasses.replace(work.network, devices_per_node=request.plan.ranks // nodes)
        work = dataclasses.replace(work, network=of_node)
        entry["node_sent_bytes"] = round(work.node_sent_bytes(projection))
    return entry


def with_projected_cuts(request: RunRequest) -> RunRequest:
    """Return ``request`` with the cuts of ``cut=ampa`` by the unit times of this machine.

    The plan then states the cuts, which all ranks use and the log has. They respect the memory of
    the devices. Where unit times are unknown, or with several nodes, ranks cut by FLOPs.

    Raises:
        UserError: exit status 2 if the request is not valid, or no cuts that were tried fit.
    """
    plan = request.plan
    if plan.cut != "ampa" or plan.pp == 1 or request.nodes.count > 1:
        return request
    require_valid(request)
    if (source := projection_source(request)) is None:
        return request
    most_bytes = device_memory_bytes(plan.ranks)
    work = Work.of_task(request.task(), source.units, source.timing, source.network, most_bytes)
    return dataclasses.replace(request, plan=work.cut(plan))


def _profile_source(request: RunRequest, units: UnitTable) -> Source | None:
    """Return the cached profile of the plan's ranks on this machine; None without a valid one."""
    plan = request.plan
    if request.nodes.count > 1:
        return None
    profile = cached_profile(read_task(request.task_path), plan.ranks, plan.precision)
    if profile is None or profile.unit_names != tuple(unit.name for unit in units.units):
        return None
    return Source(
        units,
        profile.times,
        profile.network(plan.dp) if plan.ranks > 1 else Network(1, _NO_LINK),
        {
            "kind": "profile",
            "date": profile.date[:10],
            "sha256": hashlib.sha256(canonical_json(profile.as_table())).hexdigest(),
        },
    )


def _device_source(request: RunRequest, units: UnitTable) -> Source | None:
    """Return the device model of this machine's accelerators; None if no known system has them."""
    devices = usable_devices()
    device = find_accelerator(devices.name) if devices.kind == "gpu" else None
    system = next((each for each in known_systems() if each.device == device), None)
    if system is None:
        return None
    try:
        timing = system.timing(units, request.plan.precision)
    except UserError:  # no peak in this precision
        return None
    return Source(
        units,
        timing,
        dataclasses.replace(system.network, devices_per_node=devices.count),
        {"kind": "device model", "device": system.device.name, "system": system.name},
    )
