"""Probe processors: model, topology, caches and the cores usable by this process."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import psutil

from hybridperf.system import files
from hybridperf.system.cgroup import limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Cache", "NumaNode", "OtherProcesses", "Processor", "only_cores", "probe_processor"]


class Cache(TypedDict):
    """All caches of one level, kind and size."""

    name: str  #: such as ``L1d``
    size_bytes: int  #: size of one cache
    count: int


class NumaNode(TypedDict):
    """A NUMA node: a memory domain and its local processors."""

    node: int
    logical_cpus: list[int]


class Processor(TypedDict):
    """The processors of this machine; unknown values are None or empty."""

    model: str
    architecture: str
    sockets: int | None
    physical_cores: int | None
    logical_cpus: int
    usable_logical_cpus: int  #: logical CPUs in the affinity mask
    usable_cores: int  #: physical cores, limited by affinity and CPU quota
    max_clock_hz: int | None
    caches: list[Cache]
    numa_nodes: list[NumaNode]


# Arm cores, which /proc/cpuinfo identifies by number only.
_ARM = "0x41"
_ARM_PARTS = {
    "0xd03": "Cortex-A53",
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
}


def probe_processor(root: Path = Path("/")) -> Processor:
    """Describe the processors from /proc and /sys below ``root``."""
    info = files.text(root / "proc/cpuinfo")
    cpus = root / "sys/devices/system/cpu"
    online = files.cpu_list(files.text(cpus / "online"))
    online = online or list(range(max(1, len(re.findall(r"(?m)^processor\s*:", info)))))
    status = files.fields(files.text(root / "proc/self/status"))
    allowed = set(files.cpu_list(status.get("Cpus_allowed_list", ""))) & set(online) or set(online)
    cores = {cpu: files.text(_topology(cpus, cpu, "thread_siblings_list")) for cpu in online}
    known = all(cores.values())
    packages = {files.number(_topology(cpus, cpu, "physical_package_id")) for cpu in online}
    usable = len({cores[cpu] for cpu in allowed}) if known else len(allowed)
    if quota := limits(root).cpus:
        usable = min(usable, max(1, int(quota)))
    clock_khz = files.number(cpus / f"cpu{online[0]}/cpufreq/cpuinfo_max_freq")
    return Processor(
        model=_model(files.fields(info)),
        architecture=files.text(root / "proc/sys/kernel/arch") or platform.machine(),
        # Virtual machines may report socket -1, meaning unknown.
        sockets=len(packages) if packages.isdisjoint({None, -1}) else None,
        physical_cores=len(set(cores.values())) if known else None,
        logical_cpus=len(online),
        usable_logical_cpus=len(allowed),
        usable_cores=usable,
        max_clock_hz=clock_khz * 1000 if clock_khz else None,
        caches=_caches(cpus, online),
        numa_nodes=[
            _node(folder)
            for folder in files.children(root / "sys/devices/system/node", "node[0-9]*")
        ],
    )


def _topology(cpus: Path, cpu: int, name: str) -> Path:
    return cpus / f"cpu{cpu}/topology/{name}"


def _model(info: dict[str, str]) -> str:
    for key in ("model name", "cpu", "uarch"):
        if info.get(key):
            return " ".join(info[key].split())
    part = _ARM_PARTS.get(info.get("CPU part", "")) if info.get("CPU implementer") == _ARM else None
    return f"Arm {part}" if part else ""


def _caches(cpus: Path, online: Iterable[int]) -> list[Cache]:
    found = set()
    for cpu in online:
        for folder in files.children(cpus / f"cpu{cpu}/cache", "index[0-9]*"):
            level = files.number(folder / "level")
            size = files.size_bytes(folder / "size")
            kind = {"Data": "d", "Instruction": "i"}.get(files.text(folder / "type"), "")
            if level and size:
                found.add(
                    (f"L{level}{kind}", size, files.text(folder / "shared_cpu_list") or str(cpu))
                )
    counted = Counter((name, size) for name, size, _ in found)
    return [
        Cache(name=name, size_bytes=size, count=n) for (name, size), n in sorted(counted.items())
    ]


def _node(folder: Path) -> NumaNode:
    return NumaNode(
        node=int(re.sub(r"\D", "", folder.name)),
        logical_cpus=files.cpu_list(files.text(folder / "cpulist")),
    )


@contextlib.contextmanager
def only_cores(count: int, root: Path = Path("/")) -> Iterator[None]:
    """Restrict this process and its children to the first ``count`` usable cores."""
    before = os.sched_getaffinity(0)
    siblings: dict[str, set[int]] = {}
    for cpu in sorted(before):
        place = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings.setdefault(files.text(place) or str(cpu), set()).add(cpu)
    chosen = list(siblings.values())[:count]
    os.sched_setaffinity(0, set().union(*chosen))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class OtherProcesses:
    """The processor time that others use while this process and its children do something.

    A hypervisor that gives the processors to others counts, too. Children count once they have
    ended.
    """

    def __init__(self) -> None:
        self._start_s, self._busy_s, self._own_s = self._read()

    def share(self) -> float:
        """Return their share of the time of the processors that this process may use."""
        now_s, busy_s, own_s = self._read()
        others_s = busy_s - self._busy_s - (own_s - self._own_s)
        processors = len(os.sched_getaffinity(0))
        return max(0.0, others_s / ((now_s - self._start_s) * processors))

    @staticmethod
    def _read() -> tuple[float, float, float]:
        usable = os.sched_getaffinity(0)
        busy_s = 0.0
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            if number in usable:
                # What virtual machines are given is part of the user's time already.
                busy_s += sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own_s = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return time.monotonic(), busy_s, own_s
