"""Format a system description as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from hybridperf.system.describe import counted, gibibytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.system.accelerators import Accelerators
    from hybridperf.system.cpu import Processor
    from hybridperf.system.describe import Machine

__all__ = ["show"]


def show(description: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return (label, value) rows of the known facts of `describe`, most important first."""
    machine = cast("Machine", description["hybridperf"])
    memory, around, software = machine["memory"], machine["surroundings"], machine["software"]
    rows = [
        ("system", str(description.get("system_name", ""))),
        ("accelerators", _accelerators(machine["accelerators"])),
        ("accelerator links", str(description["accelerator_interconnect_topology"])),
        ("processor", machine["processor"]["model"] or machine["processor"]["architecture"]),
        ("cores", _cores(machine["processor"])),
        ("caches", str(description["host_processor_caches"])),
        ("memory", gibibytes(memory["size_bytes"])),
        ("usable memory", _limit(memory["size_bytes"], memory["usable_bytes"])),
        ("disks", _disks(machine)),
        ("file system", machine["storage"]["filesystem"]),
        ("network", str(description["host_networking"])),
        ("operating system", _joined(around["operating_system"], around["kernel"])),
        ("container", around["container"]),
        ("virtual machine", _virtual(machine)),
        ("clock source", around["clock_source"]),
        ("python", _joined(software["python_implementation"], software["python"])),
        ("framework", str(description["framework"])),
        ("driver", machine["accelerators"]["driver"]),
        ("libraries", _pairs(software["libraries"])),
        ("environment", _pairs(software["environment"])),
    ]
    return [(label, value) for label, value in rows if value]


def _accelerators(accelerators: Accelerators) -> str:
    used = [gpu for gpu in accelerators["gpus"] if gpu["used"]]
    known = counted(_joined(gpu["name"], gibibytes(gpu["memory_bytes"])) for gpu in used)
    return known or (f"{accelerators['used']}x GPU" if accelerators["used"] else "")


def _cores(processor: Processor) -> str:
    parts = [f"{processor['usable_cores']} usable"]
    if processor["physical_cores"]:
        parts += [f"{processor['physical_cores']} physical"]
    parts += [f"{processor['logical_cpus']} logical"]
    if processor["sockets"]:
        parts += [f"{processor['sockets']} socket{'s' if processor['sockets'] > 1 else ''}"]
    if (nodes := len(processor["numa_nodes"])) > 1:
        parts += [f"{nodes} NUMA nodes"]
    return ", ".join(parts)


def _limit(size_bytes: int | None, usable_bytes: int | None) -> str:
    return gibibytes(usable_bytes) if usable_bytes != size_bytes else ""


def _disks(machine: Machine) -> str:
    return counted(
        _joined(gibibytes(disk["size_bytes"]), disk["kind"], disk["model"])
        for disk in machine["storage"]["disks"]
    )


def _virtual(machine: Machine) -> str:
    around = machine["surroundings"]
    return around["hypervisor"] or ("yes" if around["virtual_machine"] else "")


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value)


def _joined(*words: str) -> str:
    return " ".join(filter(None, words))
