"""Read files of /proc and /sys, any of which may be absent, unreadable or malformed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "GroupLimits",
    "children",
    "cpu_list",
    "fields",
    "group_limits",
    "integer",
    "link_name",
    "size_bytes",
    "text",
]

_SIZE = re.compile(r"(\d{1,15})\s*([KMG]?)")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def text(path: Path) -> str:
    """Return the stripped text of the file; ``""`` if it cannot be read."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError):
        return ""
    return content.decode(errors="replace").replace("\0", " ").strip()


def integer(path: Path) -> int | None:
    """Return the whole number in the file; None if there is none."""
    found = re.fullmatch(r"-?\d{1,19}", text(path))
    return int(found[0]) if found else None


def size_bytes(path: Path) -> int | None:
    """Return a size in the file, such as ``32K`` or ``1G``, in bytes; None if there is none."""
    found = _SIZE.fullmatch(text(path))
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else None


def fields(content: str) -> dict[str, str]:
    """Parse the ``key: value`` lines of a text; the first of duplicate keys is used."""
    found: dict[str, str] = {}
    for line in content.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def cpu_list(content: str) -> list[int]:
    """Parse a CPU list such as ``0-3,8``; malformed parts are skipped."""
    found: set[int] = set()
    for part in content.split(","):
        if span := _RANGE.fullmatch(part.strip()):
            found.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    return sorted(found)


def children(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the entries of a folder in natural order; empty if it cannot be read."""
    try:
        return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
    except OSError:
        return []


def link_name(path: Path) -> str:
    """Return the base name of a symbolic link's target; ``""`` if it cannot be read."""
    try:
        return path.readlink().name
    except OSError:
        return ""


_UNLIMITED_BYTES = 1 << 60  # version 1 writes a number near 2**63 for "no limit"


class GroupLimits(NamedTuple):
    """The limits of control groups (cgroups v1 and v2); None if unlimited."""

    cpus: float | None  #: CPU quota in processors, such as 1.5
    memory_bytes: int | None


def group_limits(root: Path = Path("/")) -> GroupLimits:
    """Return the tightest limits over this process's control groups and their ancestors."""
    cpus = [quota for folder in _groups(root, "cpu") if (quota := _cpu_quota(folder))]
    memory = [
        size
        for folder in _groups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (size := integer(folder / name)) and size < _UNLIMITED_BYTES
    ]
    return GroupLimits(min(cpus, default=None), min(memory, default=None))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    mounted = root / "sys/fs/cgroup"
    for line in text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            base = mounted
        elif controller in controllers.split(","):
            base = mounted / controller
        else:
            continue
        # In a container, the path may be the host's; then only the base exists.
        inside = Path(group.strip("/"))
        yield from (base / part for part in (inside, *inside.parents) if ".." not in part.parts)


def _cpu_quota(folder: Path) -> float | None:
    quota, _, period = text(folder / "cpu.max").partition(" ")
    if not quota:
        quota = text(folder / "cpu.cfs_quota_us")
        period = text(folder / "cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        return int(quota) / int(period)
    return None
