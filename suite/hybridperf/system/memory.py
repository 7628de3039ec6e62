"""Probe the main memory and the limit of this process."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from hybridperf.system import files
from hybridperf.system.cgroup import limits

__all__ = ["Memory", "available_bytes", "probe_memory"]


class Memory(TypedDict):
    """Sizes in bytes; None where unknown."""

    size_bytes: int | None
    usable_bytes: int | None  #: total, limited by control groups
    swap_bytes: int | None


def probe_memory(root: Path = Path("/")) -> Memory:
    """Describe the memory from /proc and /sys below ``root``."""
    size, limit = _entry(root, "MemTotal"), limits(root).memory_bytes
    return Memory(
        size_bytes=size,
        usable_bytes=min((n for n in (size, limit) if n is not None), default=None),
        swap_bytes=_entry(root, "SwapTotal"),
    )


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes currently available to a new process; None if unknown."""
    amounts = (_entry(root, "MemAvailable"), limits(root).memory_bytes)
    return min((n for n in amounts if n is not None), default=None)


def _entry(root: Path, name: str) -> int | None:
    value = files.fields(files.text(root / "proc/meminfo")).get(name, "").removesuffix("kB").strip()
    return int(value) << 10 if value.isdecimal() else None
