"""System description: MLPerf's fields and the measurements behind them, names, and rows to show."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast

from hybridperf.system import toolkit
from hybridperf.system.accelerators import Accelerators, probe_accelerators
from hybridperf.system.host import (
    Adapter,
    HostMemory,
    HostSurroundings,
    Processor,
    Storage,
    probe_memory,
    probe_network,
    probe_processor,
    probe_storage,
    probe_surroundings,
)
from hybridperf.system.privacy import Guard
from hybridperf.system.software import Software, probe_software, torch_build

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "Machine",
    "count_texts",
    "describe",
    "describe_with_torch",
    "entry_name",
    "gibibytes",
    "show",
    "system_name",
]


class Machine(TypedDict):
    """The measured description; unknown values are None or empty, names include units."""

    processor: Processor
    memory: HostMemory
    storage: Storage
    accelerators: Accelerators
    network: list[Adapter]
    surroundings: HostSurroundings
    software: Software


def describe(root: Path = Path("/"), nodes: int = 1) -> dict[str, object]:
    """Describe ``nodes`` machines like this one in MLPerf's fields, plus a `Machine`.

    The `Machine` is the field ``hybridperf``. The result is JSON-serialisable, deterministic and
    free of data that identifies the machine or its user. The four submission fields are empty.
    """
    guard = Guard.of_this_machine(root)
    machine = guard.scrub(_probe_machine(root))
    return {**guard.scrub(_mlperf_fields(machine, nodes)), "hybridperf": machine}


def describe_with_torch(nodes: int = 1) -> dict[str, object]:
    """Return `describe` with the build configuration of PyTorch added; takes seconds.

    Raises:
        UserError: as `torch_build`.
    """
    description = describe(nodes=nodes)
    machine = cast("dict[str, object]", description["hybridperf"])
    machine["torch_build"] = torch_build()
    return description


def _probe_machine(root: Path = Path("/")) -> Machine:
    """Measure this machine; the result may contain identifying data."""
    return Machine(
        processor=probe_processor(root),
        memory=probe_memory(root),
        storage=probe_storage(root),
        accelerators=probe_accelerators(root),
        network=probe_network(root),
        surroundings=probe_surroundings(root),
        software=probe_software(),
    )


def _mlperf_fields(machine: Machine, nodes: int = 1) -> dict[str, str]:
    """Return MLPerf Training's system description of ``nodes`` machines like ``machine``."""
    return {
        "submitter": "",
        "division": "",
        "status": "",
        "system_name": "",
        "number_of_nodes": str(nodes),
        **_host(machine["processor"], virtual=machine["surroundings"]["virtual_machine"] is True),
        "host_memory_capacity": gibibytes(machine["memory"]["size_bytes"]),
        **_storage(machine["storage"]),
        "host_networking": count_texts(
            " ".join(
                filter(None, (_rate(one["speed_bits_per_second"]), one["kind"], one["driver"]))
            )
            for one in machine["network"]
        ),
        "host_networking_topology": "",
        "host_memory_configuration": "",
        **_accelerators(machine["accelerators"]),
        "cooling": "",
        "hw_notes": "",
        **_software(machine),
        "sw_notes": "",
    }


def count_texts(texts: Iterable[str]) -> str:
    """Count equal ``texts``, as in ``2x this, 1x that``, in order of first appearance."""
    return ", ".join(f"{count}x {text}" for text, count in Counter(filter(None, texts)).items())


def gibibytes(size_bytes: int | None) -> str:
    """Format a size in GiB with at most one decimal; ``""`` if unknown."""
    return f"{round(size_bytes / 2**30, 1):g} GiB" if size_bytes else ""


def _host(processor: Processor, *, virtual: bool) -> dict[str, str]:
    sockets, cores = processor["sockets"], processor["physical_cores"]
    hertz = processor["max_clock_hz"]
    return {
        "host_processors_per_node": _number(sockets),
        "host_processor_model_name": processor["model"],
        # MLPerf counts the cores of one processor.
        "host_processor_core_count": _number(cores // sockets if cores and sockets else cores),
        "host_processor_vcpu_count": _number(processor["logical_cpus"] if virtual else None),
        "host_processor_frequency": f"{hertz / 1e9:g} GHz" if hertz else "",
        "host_processor_caches": ", ".join(
            f"{cache['name']} {cache['count']}x {_kibibytes(cache['size_bytes'])}"
            for cache in processor["caches"]
        ),
        "host_processor_interconnect": "",
    }


def _storage(storage: Storage) -> dict[str, str]:
    disks = storage["disks"]
    return {
        "host_storage_type": ", ".join(
            dict.fromkeys(disk["kind"] for disk in disks if disk["kind"])
        ),
        "host_storage_capacity": count_texts(gibibytes(disk["size_bytes"]) for disk in disks),
    }


def _accelerators(accelerators: Accelerators) -> dict[str, str]:
    used = [gpu for gpu in accelerators["gpus"] if gpu["used"]]
    pcie = count_texts(
        f"PCIe {gpu['pcie_generation']}.0 x{gpu['pcie_width']}"
        for gpu in used
        if gpu["pcie_generation"] and gpu["pcie_width"]
    )
    links = {gpu["nvlink_links"] for gpu in used if gpu["nvlink_links"]}
    clocks = dict.fromkeys(gpu["sm_clock_max_hz"] for gpu in used if gpu["sm_clock_max_hz"])
    return {
        "accelerators_per_node": str(accelerators["used"]),
        "accelerator_model_name": ", ".join(
            dict.fromkeys(gpu["name"] for gpu in used if gpu["name"])
        ),
        "accelerator_host_interconnect": pcie,
        "accelerator_frequency": ", ".join(f"{hertz / 1e6:g} MHz" for hertz in clocks),
        "accelerator_on-chip_memories": "",
        "accelerator_memory_configuration": "",
        "accelerator_memory_capacity": ", ".join(
            dict.fromkeys(gibibytes(gpu["memory_bytes"]) for gpu in used if gpu["memory_bytes"])
        ),
        "accelerator_interconnect": ", ".join(f"NVLink, {n} links" for n in sorted(links)),
        "accelerator_interconnect_topology": _topology(accelerators),
    }


def _topology(accelerators: Accelerators) -> str:
    used = [index for index, gpu in enumerate(accelerators["gpus"]) if gpu["used"]]
    wanted = [list(pair) for pair in itertools.combinations(used, 2)]
    pairs = [pair for pair in accelerators["pairs"] if pair["gpus"] in wanted]
    if not pairs or any(pair["nvlink"] is None for pair in pairs):
        return ""
    joined = sum(pair["nvlink"] is True for pair in pairs)
    return f"NVLink joins {joined} of {len(pairs)} pairs"


def _software(machine: Machine) -> dict[str, str]:
    software, surroundings = machine["software"], machine["surroundings"]
    accelerators, torch = machine["accelerators"], software["torch"]["version"]
    nccl = [text for name, text in software["libraries"].items() if name.startswith("nvidia-nccl")]
    stack = {
        software["python_implementation"]: software["python"],
        toolkit.NAME: software["torch"]["toolkit"],
        "NCCL": nccl[0] if nccl else "",
        "NVIDIA driver": accelerators["driver"],
        "Linux": surroundings["kernel"],
    }
    return {
        "framework": f"PyTorch {torch}" if torch else "",
        "other_software_stack": ", ".join(f"{name} {text}" for name, text in stack.items() if text),
        "operating_system": surroundings["operating_system"],
    }


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _kibibytes(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes % 2**20 == 0 else f"{size_bytes / 1024:g} KiB"


def _rate(bits_per_second: int | None) -> str:
    return f"{bits_per_second / 1e9:g} Gb/s" if bits_per_second else ""


_LONGEST = 64
_HASH = 8
# Words of processor names that do not distinguish models.
_NOISE = re.compile(
    r"\((?:R|TM)\)|@.*|\bwith\b.*|\bw/.*|\b\d+-Core\b|\b(?:CPU|Processor)\b", re.IGNORECASE
)


def system_name(description: Mapping[str, object]) -> str:
    """Return a name such as ``2c-amd-epyc`` or ``8x-nvidia-h200`` for a result of `describe`.

    With several nodes, their number is prefixed, as in ``2nodes-8x-nvidia-h200``. The name is a
    valid file name and equal for machines of one kind.
    """
    nodes = str(description.get("number_of_nodes", "1"))
    name = _machine_name(cast("Machine", description["hybridperf"]))
    return name if nodes == "1" else _truncate(f"{nodes}nodes-{name}")


def _machine_name(machine: Machine) -> str:
    if used := machine["accelerators"]["used"]:
        names = [
            gpu["name"] for gpu in machine["accelerators"]["gpus"] if gpu["used"] and gpu["name"]
        ]
        return _safe(f"{used}x", names[0] if names else "gpu")
    processor = machine["processor"]
    model = _NOISE.sub(" ", processor["model"])
    return _safe(f"{processor['usable_cores']}c", model, processor["architecture"], "cpu")


def entry_name(machine: str, plan: str) -> str:
    """Return the folder name of results of ``plan`` on ``machine``.

    Names that are too long are truncated and end in a hash of the full name.
    """
    name = f"{machine}-{plan}"
    if len(name) <= _LONGEST:
        return name
    mark = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:_HASH]
    return f"{name[: _LONGEST - _HASH - 1].rstrip('-.')}-{mark}"


def _safe(count: str, *candidates: str) -> str:
    """Join the count and the first candidate that contains letters or digits."""
    words = (re.sub(r"[^a-z0-9.]+", "-", candidate.lower()).strip("-.") for candidate in candidates)
    return _truncate(f"{count}-{next(filter(None, words), 'unknown')}")


def _truncate(name: str) -> str:
    return name[:_LONGEST].rstrip("-.")


def show(description: Mapping[str, object]) -> list[tuple[str, str]]:
    """Return (label, value) rows of the known facts of `describe`, most important first."""
    machine = cast("Machine", description["hybridperf"])
    memory, around, software = machine["memory"], machine["surroundings"], machine["software"]
    usable = memory["usable_bytes"]
    virtual = around["hypervisor"] or ("yes" if around["virtual_machine"] else "")
    disks = count_texts(
        _join(gibibytes(disk["size_bytes"]), disk["kind"], disk["model"])
        for disk in machine["storage"]["disks"]
    )
    rows = [
        ("system", str(description.get("system_name", ""))),
        ("accelerators", _show_used(machine["accelerators"])),
        ("accelerator links", str(description["accelerator_interconnect_topology"])),
        ("processor", machine["processor"]["model"] or machine["processor"]["architecture"]),
        ("cores", _show_cores(machine["processor"])),
        ("caches", str(description["host_processor_caches"])),
        ("memory", gibibytes(memory["size_bytes"])),
        ("usable memory", "" if usable == memory["size_bytes"] else gibibytes(usable)),
        ("disks", disks),
        ("file system", machine["storage"]["filesystem"]),
        ("network", str(description["host_networking"])),
        ("operating system", _join(around["operating_system"], around["kernel"])),
        ("container", around["container"]),
        ("virtual machine", virtual),
        ("clock source", around["clock_source"]),
        ("python", _join(software["python_implementation"], software["python"])),
        ("framework", str(description["framework"])),
        ("driver", machine["accelerators"]["driver"]),
        ("libraries", _show_pairs(software["libraries"])),
        ("environment", _show_pairs(software["environment"])),
    ]
    return [(label, value) for label, value in rows if value]


def _show_used(accelerators: Accelerators) -> str:
    used = [gpu for gpu in accelerators["gpus"] if gpu["used"]]
    known = count_texts(_join(gpu["name"], gibibytes(gpu["memory_bytes"])) for gpu in used)
    return known or (f"{accelerators['used']}x GPU" if accelerators["used"] else "")


def _show_cores(processor: Processor) -> str:
    parts = [f"{processor['usable_cores']} usable"]
    if processor["physical_cores"]:
        parts += [f"{processor['physical_cores']} physical"]
    parts += [f"{processor['logical_cpus']} logical"]
    if processor["sockets"]:
        parts += [f"{processor['sockets']} socket{'s' if processor['sockets'] > 1 else ''}"]
    if (nodes := len(processor["numa_nodes"])) > 1:
        parts += [f"{nodes} NUMA nodes"]
    return ", ".join(parts)


def _show_pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value)


def _join(*words: str) -> str:
    return " ".join(filter(None, words))
