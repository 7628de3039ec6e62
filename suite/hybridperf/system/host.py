"""Probe the host: processors, memory, disks and file system, network adapters, operating system."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypedDict

from hybridperf.system import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "MIN_SHARED_MEMORY_BYTES",
    "Adapter",
    "Cache",
    "Disk",
    "HostMemory",
    "HostSurroundings",
    "NumaNode",
    "Processor",
    "Storage",
    "available_bytes",
    "network_sent_bytes",
    "probe_memory",
    "probe_network",
    "probe_processor",
    "probe_storage",
    "probe_surroundings",
    "processor_packages",
    "restrict_cores",
    "shared_memory_bytes",
]


class Cache(TypedDict):
    """All caches of one level, kind and size."""

    name: str  #: level and kind, such as ``L1d``
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


_CPUS = "sys/devices/system/cpu"
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
    cpus = root / _CPUS
    online = _online(root)
    status = files.fields(files.text(root / "proc/self/status"))
    allowed = set(files.cpu_list(status.get("Cpus_allowed_list", ""))) & set(online) or set(online)
    cores = {cpu: files.text(_topology(cpus, cpu, "thread_siblings_list")) for cpu in online}
    known = all(cores.values())
    usable = len({cores[cpu] for cpu in allowed}) if known else len(allowed)
    if quota := files.group_limits(root).cpus:
        usable = min(usable, max(1, int(quota)))
    clock_khz = files.integer(cpus / f"cpu{online[0]}/cpufreq/cpuinfo_max_freq")
    return Processor(
        model=_model(files.fields(info)),
        architecture=files.text(root / "proc/sys/kernel/arch") or platform.machine(),
        sockets=len(processor_packages(root)) or None,
        physical_cores=len(set(cores.values())) if known else None,
        logical_cpus=len(online),
        usable_logical_cpus=len(allowed),
        usable_cores=usable,
        max_clock_hz=clock_khz * 1000 if clock_khz else None,
        caches=_caches(cpus, online),
        numa_nodes=[
            NumaNode(
                node=int(re.sub(r"\D", "", folder.name)),
                logical_cpus=files.cpu_list(files.text(folder / "cpulist")),
            )
            for folder in files.children(root / "sys/devices/system/node", "node[0-9]*")
        ],
    )


def processor_packages(root: Path = Path("/")) -> set[int]:
    """Return the numbers of the packages of the online processors; empty if unknown."""
    names = (_topology(root / _CPUS, cpu, "physical_package_id") for cpu in _online(root))
    # Virtual machines may report package -1, meaning unknown.
    numbers = [-1 if (number := files.integer(name)) is None else number for name in names]
    return set(numbers) if min(numbers) >= 0 else set()


def _online(root: Path) -> list[int]:
    """Return the numbers of the online logical processors."""
    if found := files.cpu_list(files.text(root / _CPUS / "online")):
        return found
    info = files.text(root / "proc/cpuinfo")
    return list(range(max(1, len(re.findall(r"(?m)^processor\s*:", info)))))


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
            level = files.integer(folder / "level")
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


@contextlib.contextmanager
def restrict_cores(count: int, root: Path = Path("/")) -> Iterator[None]:
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


class HostMemory(TypedDict):
    """Sizes in bytes; None where unknown."""

    size_bytes: int | None
    usable_bytes: int | None  #: total, limited by control groups
    swap_bytes: int | None


def probe_memory(root: Path = Path("/")) -> HostMemory:
    """Describe the memory from /proc and /sys below ``root``."""
    size, limit = _meminfo(root, "MemTotal"), files.group_limits(root).memory_bytes
    return HostMemory(
        size_bytes=size,
        usable_bytes=min((n for n in (size, limit) if n is not None), default=None),
        swap_bytes=_meminfo(root, "SwapTotal"),
    )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes currently available to a new process; None if unknown."""
    amounts = (_meminfo(root, "MemAvailable"), files.group_limits(root).memory_bytes)
    return min((n for n in amounts if n is not None), default=None)


MIN_SHARED_MEMORY_BYTES: Final = 2**28  #: shared memory that data loaders and NCCL need


def shared_memory_bytes(root: Path = Path("/")) -> int:
    """Return the size of the file system for shared memory; 0 if there is none."""
    try:
        stats = os.statvfs(root / "dev/shm")
    except OSError:
        return 0
    return stats.f_frsize * stats.f_blocks


def _meminfo(root: Path, name: str) -> int | None:
    value = files.fields(files.text(root / "proc/meminfo")).get(name, "").removesuffix("kB").strip()
    return int(value) << 10 if value.isdecimal() else None


class Disk(TypedDict):
    """A disk, not a partition."""

    kind: str  #: ``NVMe``, ``SSD``, ``HDD``, ``virtual`` or unknown
    model: str
    size_bytes: int


class Storage(TypedDict):
    """The disks in ascending order of size, and the file system of the working folder."""

    disks: list[Disk]
    filesystem: str


_NOT_A_DISK = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd|mtdblock)\d*")
_VIRTUAL_MODEL = re.compile(r"(?i)QEMU|VIRTUAL|VMware|VBOX|Elastic Block Store|PersistentDisk")
_SECTOR_BYTES = 512  # unit of /sys/block/*/size, independent of the disk


def probe_storage(root: Path = Path("/"), folder: Path | None = None) -> Storage:
    """Describe the disks and the file system of ``folder`` (default: working folder)."""
    disks = [
        Disk(kind=_disk_kind(path), model=_disk_model(path), size_bytes=sectors * _SECTOR_BYTES)
        for path in files.children(root / "sys/block")
        if not _NOT_A_DISK.match(path.name) and (sectors := files.integer(path / "size"))
    ]
    disks.sort(key=lambda disk: (disk["size_bytes"], disk["model"], disk["kind"]))
    mounts = files.text(root / "proc/self/mountinfo")
    return Storage(disks=disks, filesystem=_filesystem(mounts, folder or Path.cwd()))


def _disk_kind(disk: Path) -> str:
    if disk.name.startswith(("vd", "xvd")) or _VIRTUAL_MODEL.search(_disk_model(disk)):
        return "virtual"
    if disk.name.startswith("nvme"):
        return "NVMe"
    rotational = files.integer(disk / "queue/rotational")
    return {0: "SSD", 1: "HDD"}.get(rotational, "") if rotational is not None else ""


def _disk_model(disk: Path) -> str:
    return " ".join(files.text(disk / "device/model").split())


def _filesystem(mounts: str, folder: Path) -> str:
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        columns = left.split(" ")
        if len(columns) < 5 or not right:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), columns[4]))
        # A later mount hides an earlier one on the same path.
        if folder.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), right.split(" ")[0]
    return kind


class Adapter(TypedDict):
    """A network adapter, without its name and addresses."""

    kind: str  #: ``ethernet``, ``infiniband``, ``wireless`` or unknown
    driver: str
    speed_bits_per_second: int | None


_INFINIBAND: Final = 32  # ARPHRD_INFINIBAND
_KINDS = {1: "ethernet", _INFINIBAND: "infiniband"}  # 1: ARPHRD_ETHER
_PORT_WORD_BYTES: Final = 4  #: unit of port_xmit_data (sysfs-class-infiniband)


def probe_network(root: Path = Path("/")) -> list[Adapter]:
    """Describe the adapters in a deterministic order, without bridges, tunnels and loopback."""
    found = [
        Adapter(
            kind=_adapter_kind(path),
            driver=files.link_name(path / "device/driver"),
            speed_bits_per_second=_speed(path),
        )
        for path in files.children(root / "sys/class/net")
        if (path / "device").exists()
    ]
    return sorted(found, key=str)


def network_sent_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that the adapters have sent since this machine started; None if unknown.

    These are the bytes on the wire, headers included. Where there is no adapter, as in a container,
    all interfaces but loopback count. Of InfiniBand the ports count, since what RDMA sends does not
    pass the kernel; RDMA over Ethernet is not known.
    """
    interfaces = [path for path in files.children(root / "sys/class/net") if path.name != "lo"]
    interfaces = [path for path in interfaces if (path / "device").exists()] or interfaces
    counts = [
        files.integer(path / "statistics/tx_bytes")
        for path in interfaces
        if files.integer(path / "type") != _INFINIBAND
    ]
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        words = files.integer(port / "counters/port_xmit_data")
        is_native = files.text(port / "link_layer") == "InfiniBand"
        counts.append(_PORT_WORD_BYTES * words if is_native and words is not None else None)
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _adapter_kind(path: Path) -> str:
    if (path / "wireless").exists():
        return "wireless"
    return _KINDS.get(files.integer(path / "type") or 0, "")


def _speed(path: Path) -> int | None:
    megabits = files.integer(path / "speed")
    # Drivers report -1 or 0 for an unknown speed.
    return megabits * 1_000_000 if megabits is not None and megabits > 0 else None


class HostSurroundings(TypedDict):
    """Operating system, container and virtual machine; unknown values are empty."""

    operating_system: str
    kernel: str
    clock_source: str
    container: str  #: ``docker``, ``podman``, ``lxc``, ``kubernetes``, ``containerd`` or ""
    virtual_machine: bool | None  #: None if unknown
    hypervisor: str


_CONTAINERS = (
    ("kubernetes", r"kubepods|kubelet"),
    ("docker", r"docker"),
    ("podman", r"libpod|podman|containers/storage"),
    ("containerd", r"containerd"),
    ("lxc", r"lxc"),
)
# Matched against DMI strings; only these names are published.
_HYPERVISORS = (
    ("Amazon EC2", r"Amazon EC2"),
    ("Google Compute Engine", r"Google"),
    ("Microsoft Hyper-V", r"Microsoft Corporation"),
    ("VMware", r"VMware"),
    ("VirtualBox", r"VirtualBox|innotek"),
    ("Xen", r"Xen"),
    ("Firecracker", r"Firecracker"),
    ("KVM", r"QEMU|KVM|Bochs|OpenStack|RHEV|oVirt"),
)


def probe_surroundings(root: Path = Path("/")) -> HostSurroundings:
    """Describe the operating system from the files below ``root``."""
    clock = root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    virtual = _virtual(files.fields(files.text(root / "proc/cpuinfo")))
    return HostSurroundings(
        operating_system=_operating_system(root),
        kernel=files.text(root / "proc/sys/kernel/osrelease"),
        clock_source=files.text(clock),
        container=_container(root),
        virtual_machine=virtual,
        hypervisor=_hypervisor(root) if virtual else "",
    )


def _operating_system(root: Path) -> str:
    entries = dict(
        line.split("=", 1)
        for line in files.text(root / "etc/os-release").splitlines()
        if "=" in line
    )
    name, version = (entries.get(key, "").strip("\"'") for key in ("NAME", "VERSION_ID"))
    return f"{name} {version}".strip() or platform.system()


def _container(root: Path) -> str:
    groups = "\n".join(files.text(root / f"proc/{who}/cgroup") for who in ("self", "1"))
    mounts = files.text(root / "proc/self/mountinfo").splitlines()
    at_root = "\n".join(line for line in mounts if line.split(" ")[4:5] == ["/"])
    if (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    for name, pattern in _CONTAINERS:
        if re.search(pattern, groups) or re.search(pattern, at_root):
            return name
    if (root / ".dockerenv").exists():
        return "docker"
    return "podman" if (root / "run/.containerenv").exists() else ""


def _virtual(info: dict[str, str]) -> bool | None:
    flags = info.get("flags", "").split()
    return "hypervisor" in flags if flags else None


def _hypervisor(root: Path) -> str:
    dmi = " ".join(
        files.text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")
    )
    for name, pattern in _HYPERVISORS:
        if re.search(pattern, dmi):
            return name
    return "Xen" if files.text(root / "sys/hypervisor/type") == "xen" else ""
