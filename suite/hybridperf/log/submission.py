"""Represent the submission of an organisation: results, system descriptions and other files."""

from __future__ import annotations

import functools
import os
import re
import stat
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.untrusted import DOCUMENT_CAP_BYTES, parse_object, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hybridperf.log.package import Package

__all__ = ["DEPTH_CAP", "ITEMS_CAP", "Item", "Submission", "Tree", "submissions_of", "walk"]

# Working files of 'hybridperf run' in a result's folder, and folders of unfinished attempts.
_OWN: Final = re.compile(
    r"\.lock|\.seeds\.json|\.output_[0-9]{1,6}\.txt|\.(?:result_|SHA256SUMS\.|task\.toml\.).*"
)
_ATTEMPT: Final = re.compile(r"\.attempt_[0-9]{1,6}")


@dataclass(frozen=True)
class Submission:
    """The submission of one organisation to one round."""

    root: Path  #: the folder of the round
    org: str
    packages: tuple[Package, ...]  #: the results to check, all or some

    @property
    def folder(self) -> Path:
        """Return the organisation's folder."""
        return self.root / self.org

    @functools.cached_property
    def tree(self) -> Tree:
        """Return the folder's files, restricted to the results to check if these are a subset."""
        tree = walk(self.folder)
        wanted = {(each.system, each.benchmark) for each in self.packages}
        present = {
            (item.parts[1], item.parts[2])
            for item in tree.items
            if len(item.parts) == 4 and item.parts[0] == "results" and item.name.endswith(".txt")
        }
        if present <= wanted:
            return tree
        prefixes = [
            prefix
            for system, benchmark in wanted
            for prefix in (
                ("results", system, benchmark),
                ("systems", f"{system}.json"),
                ("benchmarks", benchmark),
            )
        ]
        return Tree(tuple(item for item in tree.items if _touches(item.parts, prefixes)), tree.cut)

    @property
    def items(self) -> list[Item]:
        """Return the files to check, without the harness's working files."""
        return [item for item in self.tree.items if not _is_own(item.parts)]

    @property
    def unsealed(self) -> list[Item]:
        """Return the folders of unfinished attempts."""
        return [
            item
            for item in self.tree.items
            if len(item.parts) == 4 and _ATTEMPT.fullmatch(item.name) and item.kind == "folder"
        ]

    @functools.cached_property
    def systems(self) -> Mapping[str, dict[str, object]]:
        """Return the readable system descriptions of `packages` by system name."""
        read = {each.system: _read(each.system_file) for each in self.packages}
        return {name: system for name, system in read.items() if system is not None}

    def place(self, *parts: str) -> str:
        """Return the displayed path of a file or folder, with control characters escaped."""
        return self.packages[0].name_of(self.folder.joinpath(*parts))


def submissions_of(packages: Iterable[Package]) -> Iterator[Submission]:
    """Yield the submissions that ``packages`` belong to, sorted by round and organisation."""
    in_order = sorted(packages, key=lambda each: (each.root, each.org, each.system, each.benchmark))
    # A generator, since each submission caches its list of files.
    for (root, org), group in groupby(in_order, key=lambda each: (each.root, each.org)):
        yield Submission(root, org, tuple(group))


def _is_own(parts: tuple[str, ...]) -> bool:
    if len(parts) < 4 or parts[0] != "results":
        return False
    return bool(_ATTEMPT.fullmatch(parts[3]) or (len(parts) == 4 and _OWN.fullmatch(parts[3])))


def _touches(parts: tuple[str, ...], prefixes: Sequence[tuple[str, ...]]) -> bool:
    """Tell whether one of ``prefixes`` equals, contains or lies below the path ``parts``."""
    return any(parts[: len(prefix)] == prefix[: len(parts)] for prefix in prefixes)


def _read(path: Path) -> dict[str, object] | None:
    try:
        content = read_bounded(path, DOCUMENT_CAP_BYTES)
        return parse_object(content.decode("utf-8-sig", errors="replace"))
    except (OSError, ValueError):
        return None  # reported when the results are read


ITEMS_CAP: Final = 50_000
DEPTH_CAP: Final = 24

Kind = Literal["file", "folder", "link", "special"]


@dataclass(frozen=True, slots=True)
class Item:
    """A file, folder, link or special file."""

    parts: tuple[str, ...]  #: path relative to the organisation's folder
    kind: Kind  #: links are not followed; special: pipe, device or socket
    size_bytes: int

    @property
    def name(self) -> str:
        """Return the last part of the path."""
        return self.parts[-1]


@dataclass(frozen=True, slots=True)
class Tree:
    """The files and folders below a folder, sorted by path."""

    items: tuple[Item, ...]
    cut: str  #: reason for truncation, or ""

    def files(self, *above: str) -> list[Item]:
        """Return all regular files below the folder ``above``, at any depth."""
        return [
            item
            for item in self.items
            if item.kind == "file" and item.parts[: len(above)] == above != item.parts
        ]

    def has(self, *parts: str) -> bool:
        """Tell whether the path ``parts`` exists."""
        return any(item.parts == parts for item in self.items)


def walk(folder: Path) -> Tree:
    """List ``folder`` recursively up to `ITEMS_CAP` and `DEPTH_CAP`, without following links."""
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
    except OSError:  # deleted meanwhile, or not readable
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
