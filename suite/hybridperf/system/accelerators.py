"""Probe accelerators, and select the devices to train on."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypedDict

from hybridperf.system import files
from hybridperf.system.host import probe_memory, probe_processor
from hybridperf.system.software import torch_build, torch_release
from hybridperf.system.toolkit import (
    Nvml,
    compute_capability,
    driver_toolkit,
    nvml_session,
    visible_gpus,
)

__all__ = [
    "Accelerators",
    "Devices",
    "device_memory_bytes",
    "gpu_models",
    "probe_accelerators",
    "usable_devices",
    "visible_handles",
]


class Accelerators(TypedDict):
    """All accelerators of this machine, and the number in use."""

    used: int
    gpus: list[Gpu]
    pairs: list[GpuPair]
    driver: str
    driver_toolkit: str  #: newest toolkit version supported by the driver
    display_vendors: list[str]  #: vendors of the graphics adapters in sysfs


_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel", "0x1da3": "Habana"}


def probe_accelerators(root: Path = Path("/")) -> Accelerators:
    """Describe the accelerators, using NVML if installed; ``root`` is the file system root."""
    ids = {
        files.text(card / "device/vendor")
        for card in files.children(root / "sys/class/drm", "card*")
    }
    vendors = sorted(_VENDORS[vendor] for vendor in ids if vendor in _VENDORS)
    with nvml_session(root) as library:
        if library is None:
            names = gpu_models(root) or _other_accelerators()
            gpus = [_gpu_of_name(name) for name in names]
            return Accelerators(
                used=len(gpus),
                gpus=gpus,
                pairs=[],
                driver="",
                driver_toolkit="",
                display_vendors=vendors,
            )
        handles = library.handles()
        used_gpus = visible_gpus([_identities(library, handle) for handle in handles])
        return Accelerators(
            used=len(used_gpus),
            gpus=[
                _describe_gpu(library, handle, used=n in used_gpus)
                for n, handle in enumerate(handles)
            ],
            pairs=[
                _describe_pair(library, handles, pair)
                for pair in combinations(range(len(handles)), 2)
            ],
            driver=library.text("SystemGetDriverVersion"),
            driver_toolkit=driver_toolkit(library),
            display_vendors=vendors,
        )


def gpu_models(root: Path = Path("/")) -> list[str]:
    """Return the model names of the visible NVIDIA GPUs, in the order of the environment.

    Without NVML, they are read from the driver's files in /proc.
    """
    with nvml_session(root) as library:
        if library is not None:
            return [library.text("DeviceGetName", gpu) for gpu in visible_handles(library)]
    folders = files.children(root / "proc/driver/nvidia/gpus")
    information = [files.fields(files.text(folder / "information")) for folder in folders]
    names = [one.get("Model", "") for one in information]
    identities = [[one.get("GPU UUID", "")] for one in information]
    return [names[gpu] for gpu in visible_gpus(identities)]


def visible_handles(library: Nvml) -> list[Any]:
    """Return the handles of the visible GPUs, in the order of the environment.

    The handle of a GPU is there once for each of its visible MIG instances.
    """
    handles = library.handles()
    visible = visible_gpus([_identities(library, handle) for handle in handles])
    return [handles[gpu] for gpu in visible]


def _gpu_of_name(name: str) -> Gpu:
    gpu = _describe_gpu(Nvml(None), None, used=True)
    gpu["name"] = name
    return gpu


def _identities(library: Nvml, handle: Any) -> list[str]:
    found = [library.text("DeviceGetUUID", handle)]
    for index in range(library.whole("DeviceGetMaxMigDeviceCount", handle) or 0):
        instance = library.call("DeviceGetMigDeviceHandleByIndex", handle, index)
        if instance is not None:
            found.append(library.text("DeviceGetUUID", instance))
    return found


class Gpu(TypedDict):
    """One GPU; clocks and links are limits and settings, not current values."""

    name: str
    used: bool  #: visible to this process
    compute_capability: str
    memory_bytes: int | None
    sm_clock_max_hz: int | None
    sm_clock_set_hz: int | None
    memory_clock_max_hz: int | None
    memory_clock_set_hz: int | None
    power_limit_watts: float | None
    pcie_generation: int | None
    pcie_width: int | None
    nvlink_links: int | None
    mig: bool | None  #: MIG mode (division into instances) enabled


class GpuPair(TypedDict):
    """The interconnect of two GPUs, numbered from 0."""

    gpus: list[int]
    nvlink: bool | None
    nearest_common: str  #: lowest common ancestor in the topology, such as ``host bridge``


_LEVELS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "host bridge",
    40: "NUMA node",
    50: "system",
}
_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM and NVML_CLOCK_MEM
_NVLINK_CAPABILITY, _OK = 2, 0  # NVML_P2P_CAPS_INDEX_NVLINK and NVML_P2P_STATUS_OK
_MOST_LINKS = 36


def _describe_gpu(library: Nvml, handle: Any, *, used: bool) -> Gpu:
    """Describe the GPU of an NVML handle."""
    mig = library.call("DeviceGetMigMode", handle)
    milliwatts = library.whole("DeviceGetPowerManagementLimit", handle)
    states = [library.whole("DeviceGetNvLinkState", handle, link) for link in range(_MOST_LINKS)]
    known = [state for state in states if state is not None]
    return Gpu(
        name=library.text("DeviceGetName", handle),
        used=used,
        compute_capability=compute_capability(library, handle),
        memory_bytes=getattr(library.call("DeviceGetMemoryInfo", handle), "total", None),
        sm_clock_max_hz=_hertz(library.whole("DeviceGetMaxClockInfo", handle, _SM)),
        sm_clock_set_hz=_hertz(library.whole("DeviceGetApplicationsClock", handle, _SM)),
        memory_clock_max_hz=_hertz(library.whole("DeviceGetMaxClockInfo", handle, _MEMORY)),
        memory_clock_set_hz=_hertz(library.whole("DeviceGetApplicationsClock", handle, _MEMORY)),
        power_limit_watts=milliwatts / 1000 if milliwatts is not None else None,
        # The current generation drops while a GPU is idle; this is the maximum of GPU and slot.
        pcie_generation=library.whole("DeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=library.whole("DeviceGetMaxPcieLinkWidth", handle),
        nvlink_links=sum(state == 1 for state in known) if known else None,
        mig=mig[0] == 1 if mig else None,
    )


def _describe_pair(library: Nvml, handles: list[Any], pair: tuple[int, int]) -> GpuPair:
    """Describe the interconnect of the GPUs with the indices ``pair`` in ``handles``."""
    two = [handles[gpu] for gpu in pair]
    # P2P status, not link endpoints: with NVSwitch, no link connects two GPUs directly.
    status = library.whole("DeviceGetP2PStatus", *two, _NVLINK_CAPABILITY)
    level = library.whole("DeviceGetTopologyCommonAncestor", *two)
    return GpuPair(
        gpus=list(pair),
        nvlink=status == _OK if status is not None else None,
        nearest_common=_LEVELS.get(level, "") if level is not None else "",
    )


def _hertz(megahertz: int | None) -> int | None:
    return megahertz * 1_000_000 if megahertz else None


def _other_accelerators() -> list[str]:
    """Return the names of the accelerators usable by torch, other than NVIDIA's.

    Out-of-tree backends, such as backends for NPUs, register an entry point in ``torch.backends``.
    """
    release = torch_release()
    extended = importlib.metadata.entry_points(group="torch.backends")
    if not (release["hip"] or release["xpu"] or extended):
        return []  # importing torch takes seconds
    build = torch_build()
    count, name = build.get("accelerators"), build.get("accelerator")
    return [str(name or "accelerator")] * count if isinstance(count, int) else []


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that this process can train on."""

    kind: Literal["cpu", "gpu"]  #: gpu for accelerators of any kind
    count: int  #: number of accelerators, or else of processor cores; 1 or more
    name: str  #: model name; ``""`` if unknown


def device_memory_bytes(devices: int) -> int | None:
    """Return the memory of each of ``devices`` devices in use; None if unknown.

    The smallest accelerator counts; without accelerators, an equal share of the host's memory.
    """
    if usable_devices().kind == "gpu":
        gpus = [gpu["memory_bytes"] for gpu in probe_accelerators()["gpus"] if gpu["used"]]
        return min((size for size in gpus if size), default=None)
    memory = probe_memory()["usable_bytes"]
    return None if memory is None else memory // devices


def usable_devices(root: Path = Path("/")) -> Devices:
    """Return the visible accelerators supported by the installed PyTorch, or else the cores."""
    models = gpu_models(root) if torch_release()["toolkit"] else _other_accelerators()
    if models:
        return Devices("gpu", len(models), models[0])
    processor = probe_processor(root)
    return Devices("cpu", processor["usable_cores"], processor["model"])
