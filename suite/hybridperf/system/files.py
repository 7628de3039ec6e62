"""Read files of /proc and /sys, any of which may be absent, unreadable or malformed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["children", "cpu_list", "fields", "link_name", "number", "size_bytes", "text"]

_SIZE = re.compile(r"(\d{1,15})\s*([KMG]?)")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def text(path: Path) -> str:
    """Return the stripped text of the file; ``""`` if it cannot be read."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError):
        return ""
    return content.decode(errors="replace").replace("\0", " ").strip()


def number(path: Path) -> int | None:
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
