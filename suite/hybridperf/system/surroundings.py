"""Probe the operating system, container and virtual machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import TypedDict

from hybridperf.system import files

__all__ = ["Surroundings", "probe_surroundings"]


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
