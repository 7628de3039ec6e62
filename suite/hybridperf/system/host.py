"""Probe the host: memory, disks and file system, network adapters, operating system."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Final, TypedDict

from hybridperf.system import files
from hybridperf.system.cgroup import limits

__all__ = [
    "LEAST_SHARED_BYTES",
    "Adapter",
    "Disk",
    "Memory",
    "Storage",
    "Surroundings",
    "available_bytes",
    "probe_memory",
    "probe_network",
    "probe_storage",
    "probe_surroundings",
]


class Memory(TypedDict):
    """Sizes in bytes; None where unknown."""

    size_bytes: int | None
    usable_bytes: int | None  #: total, limited by control groups
    swap_bytes: int | None


def probe_memory(root: Path = Path("/")) -> Memory:
    """Describe the memory from /proc and /sys below ``root``."""
    size, limit = _meminfo(root, "MemTotal"), limits(root).memory_bytes
    return Memory(
        size_bytes=size,
        usable_bytes=min((n for n in (size, limit) if n is not None), default=None),
        swap_bytes=_meminfo(root, "SwapTotal"),
    )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes currently available to a new process; None if unknown."""
    amounts = (_meminfo(root, "MemAvailable"), limits(root).memory_bytes)
    return min((n for n in amounts if n is not None), default=None)


LEAST_SHARED_BYTES: Final = 2**28  #: of shared memory that data loaders and NCCL need


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
        if not _NOT_A_DISK.match(path.name) and (sectors := files.number(path / "size"))
    ]
    disks.sort(key=lambda disk: (disk["size_bytes"], disk["model"], disk["kind"]))
    mounts = files.text(root / "proc/self/mountinfo")
    return Storage(disks=disks, filesystem=_filesystem(mounts, folder or Path.cwd()))


def _disk_kind(disk: Path) -> str:
    if disk.name.startswith(("vd", "xvd")) or _VIRTUAL_MODEL.search(_disk_model(disk)):
        return "virtual"
    if disk.name.startswith("nvme"):
        return "NVMe"
    rotational = files.number(disk / "queue/rotational")
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


_KINDS = {1: "ethernet", 32: "infiniband"}  # ARPHRD_ETHER and ARPHRD_INFINIBAND


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


def _adapter_kind(path: Path) -> str:
    if (path / "wireless").exists():
        return "wireless"
    return _KINDS.get(files.number(path / "type") or 0, "")


def _speed(path: Path) -> int | None:
    megabits = files.number(path / "speed")
    # Drivers report -1 or 0 for an unknown speed.
    return megabits * 1_000_000 if megabits is not None and megabits > 0 else None


class Surroundings(TypedDict):
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


def probe_surroundings(root: Path = Path("/")) -> Surroundings:
    """Describe the operating system from the files below ``root``."""
    clock = root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    virtual = _virtual(files.fields(files.text(root / "proc/cpuinfo")))
    return Surroundings(
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
