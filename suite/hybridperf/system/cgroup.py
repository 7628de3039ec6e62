"""Read the limits of this process's control groups (cgroups v1 and v2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hybridperf.system import files

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Limits", "limits"]

_UNLIMITED_BYTES = 1 << 60  # version 1 writes a number near 2**63 for "no limit"


class Limits(NamedTuple):
    """The limits of control groups; None if unlimited."""

    cpus: float | None  #: CPU quota in processors, such as 1.5
    memory_bytes: int | None


def limits(root: Path = Path("/")) -> Limits:
    """Return the tightest limits of this process's control groups and their ancestors."""
    cpus = [quota for folder in _groups(root, "cpu") if (quota := _cpu_quota(folder))]
    memory = [
        size
        for folder in _groups(root, "memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (size := files.number(folder / name)) and size < _UNLIMITED_BYTES
    ]
    return Limits(min(cpus, default=None), min(memory, default=None))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    mounted = root / "sys/fs/cgroup"
    for line in files.text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            base = mounted
        elif controller in controllers.split(","):
            base = mounted / controller
        else:
            continue
        # In a container, the path may be that of the host; then only the base exists.
        inside = Path(group.strip("/"))
        yield from (base / part for part in (inside, *inside.parents) if ".." not in part.parts)


def _cpu_quota(folder: Path) -> float | None:
    quota, _, period = files.text(folder / "cpu.max").partition(" ")
    if not quota:
        quota = files.text(folder / "cpu.cfs_quota_us")
        period = files.text(folder / "cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        return int(quota) / int(period)
    return None
