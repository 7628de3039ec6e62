"""One GPU, and the way from one to another, as the driver describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from suite.systems.toolkit import compute_capability

if TYPE_CHECKING:
    from suite.systems.nvml import Nvml

__all__ = ["Gpu", "GpuPair", "describe_gpu", "describe_pair"]


class Gpu(TypedDict):
    """One GPU; clocks and links are what it is set to or can do, not what it does just now."""

    name: str
    used: bool  #: let through by the environment
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
    mig: bool | None  #: divided into instances


class GpuPair(TypedDict):
    """The way between two GPUs, counted from 0."""

    gpus: list[int]
    nvlink: bool | None
    nearest_common: str  #: what both hang from, such as ``host bridge``


_LEVELS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "host bridge",
    40: "NUMA node",
    50: "system",
}
_SM, _MEMORY = 1, 2  # the library's numbers for the two clocks
_NVLINK_CAPABILITY, _OK = 2, 0  # of "peer to peer status"
_MOST_LINKS = 36


def describe_gpu(library: Nvml, handle: Any, *, used: bool) -> Gpu:
    """Describe the GPU behind the library's handle."""
    mig = library.ask("DeviceGetMigMode", handle)
    milliwatts = library.whole("DeviceGetPowerManagementLimit", handle)
    states = [library.whole("DeviceGetNvLinkState", handle, link) for link in range(_MOST_LINKS)]
    known = [state for state in states if state is not None]
    return Gpu(
        name=library.text("DeviceGetName", handle),
        used=used,
        compute_capability=compute_capability(library, handle),
        memory_bytes=getattr(library.ask("DeviceGetMemoryInfo", handle), "total", None),
        sm_clock_max_hz=_hertz(library.whole("DeviceGetMaxClockInfo", handle, _SM)),
        sm_clock_set_hz=_hertz(library.whole("DeviceGetApplicationsClock", handle, _SM)),
        memory_clock_max_hz=_hertz(library.whole("DeviceGetMaxClockInfo", handle, _MEMORY)),
        memory_clock_set_hz=_hertz(library.whole("DeviceGetApplicationsClock", handle, _MEMORY)),
        power_limit_watts=milliwatts / 1000 if milliwatts is not None else None,
        # The present generation falls when a GPU idles; the highest is that of GPU and slot.
        pcie_generation=library.whole("DeviceGetMaxPcieLinkGeneration", handle),
        pcie_width=library.whole("DeviceGetMaxPcieLinkWidth", handle),
        nvlink_links=sum(state == 1 for state in known) if known else None,
        mig=mig[0] == 1 if mig else None,
    )


def describe_pair(library: Nvml, handles: list[Any], pair: tuple[int, int]) -> GpuPair:
    """Describe the way between two of the GPUs behind the handles."""
    two = [handles[gpu] for gpu in pair]
    # Asks about peers, not about links: with switches, no link leads from GPU to GPU.
    status = library.whole("DeviceGetP2PStatus", *two, _NVLINK_CAPABILITY)
    level = library.whole("DeviceGetTopologyCommonAncestor", *two)
    return GpuPair(
        gpus=list(pair),
        nvlink=status == _OK if status is not None else None,
        nearest_common=_LEVELS.get(level, "") if level is not None else "",
    )


def _hertz(megahertz: int | None) -> int | None:
    return megahertz * 1_000_000 if megahertz else None
