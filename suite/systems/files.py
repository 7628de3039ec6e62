"""Reading /proc and /sys, where any file may be absent, unreadable or odd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["children", "cpu_list", "fields", "link_name", "number", "size_bytes", "text"]

_SIZE = re.compile(r"(\d{1,15})\s*([KMG]?)")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def text(path: Path) -> str:
    """Return the stripped text of the file, or ``""`` where there is none to be had."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError):
        return ""
    return content.decode(errors="replace").replace("\0", " ").strip()


def number(path: Path) -> int | None:
    """Return the whole number the file holds, or None."""
    found = re.fullmatch(r"-?\d{1,19}", text(path))
    return int(found[0]) if found else None


def size_bytes(path: Path) -> int | None:
    """Return a size such as ``32K`` or ``1G`` in bytes, or None."""
    found = _SIZE.fullmatch(text(path))
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]] if found else None


def fields(content: str) -> dict[str, str]:
    """Return the ``key: value`` lines of a text; of equal keys the first one counts."""
    found: dict[str, str] = {}
    for line in content.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def cpu_list(content: str) -> list[int]:
    """Return the processors that a list such as ``0-3,8`` names; odd parts are skipped."""
    found: set[int] = set()
    for part in content.split(","):
        if span := _RANGE.fullmatch(part.strip()):
            found.update(range(int(span[1]), int(span[2] or span[1]) + 1))
    return sorted(found)


def children(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the entries of a folder, ``x2`` before ``x10``; empty where it cannot be read."""
    try:
        return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
    except OSError:
        return []


def link_name(path: Path) -> str:
    """Return the last part of what a symbolic link points to, or ``""``."""
    try:
        return path.readlink().name
    except OSError:
        return ""
