"""Probe disks and the file system of the working folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypedDict

from hybridperf.system import files

__all__ = ["Disk", "Storage", "probe_storage"]


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
        Disk(kind=_kind(path), model=_model(path), size_bytes=sectors * _SECTOR_BYTES)
        for path in files.children(root / "sys/block")
        if not _NOT_A_DISK.match(path.name) and (sectors := files.number(path / "size"))
    ]
    disks.sort(key=lambda disk: (disk["size_bytes"], disk["model"], disk["kind"]))
    mounts = files.text(root / "proc/self/mountinfo")
    return Storage(disks=disks, filesystem=_filesystem(mounts, folder or Path.cwd()))


def _kind(disk: Path) -> str:
    if disk.name.startswith(("vd", "xvd")) or _VIRTUAL_MODEL.search(_model(disk)):
        return "virtual"
    if disk.name.startswith("nvme"):
        return "NVMe"
    rotational = files.number(disk / "queue/rotational")
    return {0: "SSD", 1: "HDD"}.get(rotational, "") if rotational is not None else ""


def _model(disk: Path) -> str:
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
