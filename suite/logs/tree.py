"""Walk a folder of unknown origin: bounded, and without following a link or opening a file."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["DEPTH_CAP", "ITEMS_CAP", "Item", "Tree", "walk"]

ITEMS_CAP: Final = 50_000
DEPTH_CAP: Final = 24

Kind = Literal["file", "folder", "link", "special"]


@dataclass(frozen=True, slots=True)
class Item:
    """Something that stands in a folder."""

    parts: tuple[str, ...]  #: its path below the folder
    kind: Kind  #: a link is never followed; what is special is a pipe, a device or a socket
    size_bytes: int

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.parts[-1]


@dataclass(frozen=True, slots=True)
class Tree:
    """What was found, in order."""

    items: tuple[Item, ...]
    cut: str  #: what was left out, or ""

    def files(self, *above: str) -> list[Item]:
        """Return the regular files anywhere below the folder ``above``."""
        return [
            item
            for item in self.items
            if item.kind == "file" and item.parts[: len(above)] == above != item.parts
        ]

    def has(self, *parts: str) -> bool:
        """Tell whether something is at ``parts``."""
        return any(item.parts == parts for item in self.items)


def walk(folder: Path) -> Tree:
    """Return what stands below ``folder``; never raises for what is there."""
    items: list[Item] = []
    cut = ""
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        above = waiting.pop()
        for item in _inside(folder, above):
            if len(items) == ITEMS_CAP:
                return Tree(_sorted(items), f"more than {ITEMS_CAP} files and folders")
            items.append(item)
            if item.kind == "folder" and len(item.parts) < DEPTH_CAP:
                waiting.append(item.parts)
            elif item.kind == "folder":
                cut = f"folders more than {DEPTH_CAP} deep"
    return Tree(_sorted(items), cut)


def _sorted(items: list[Item]) -> tuple[Item, ...]:
    return tuple(sorted(items, key=lambda item: item.parts))


def _inside(folder: Path, above: tuple[str, ...]) -> Iterator[Item]:
    try:
        with os.scandir(folder.joinpath(*above)) as entries:
            for entry in entries:
                yield _item(entry, above)
    except OSError:  # a folder that went away, or that may not be read
        return


def _item(entry: os.DirEntry[str], above: tuple[str, ...]) -> Item:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return Item((*above, entry.name), "special", 0)
    kinds: dict[int, Kind] = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "link",
    }
    kind = kinds.get(stat.S_IFMT(status.st_mode), "special")
    return Item((*above, entry.name), kind, status.st_size)
