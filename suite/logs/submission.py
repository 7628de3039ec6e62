"""One organisation's submission: its results, its systems, and what else stands in its folder."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from suite.logs.strict_json import parse_object, read_bounded
from suite.logs.tree import Tree, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from suite.logs.package import Package
    from suite.logs.tree import Item

__all__ = ["Submission", "submissions_of"]

_SYSTEM_CAP_BYTES: Final = 2**20
# What 'hybridperf run' keeps in a result's folder for itself, and an attempt that it works on.
_OWN: Final = re.compile(
    r"\.lock|\.output_[0-9]{1,6}\.txt|\.(?:result_|SHA256SUMS\.|task\.toml\.).*"
)
_ATTEMPT: Final = re.compile(r"\.attempt_[0-9]{1,6}")


@dataclass(frozen=True)
class Submission:
    """What one organisation submitted to one round."""

    root: Path  #: the folder of the round
    org: str
    packages: tuple[Package, ...]  #: those that are looked at: all of the folder's, or fewer

    @property
    def folder(self) -> Path:
        """Return the organisation's folder."""
        return self.root / self.org

    @functools.cached_property
    def tree(self) -> Tree:
        """Return what stands in the folder; where fewer results are looked at, what is theirs."""
        tree = walk(self.folder)
        wanted = {(each.system, each.benchmark) for each in self.packages}
        present = {
            (item.parts[1], item.parts[2])
            for item in tree.items
            if len(item.parts) == 4 and item.parts[0] == "results" and item.name.endswith(".txt")
        }
        if present <= wanted:
            return tree
        places = [
            place
            for system, benchmark in wanted
            for place in (
                ("results", system, benchmark),
                ("systems", f"{system}.json"),
                ("benchmarks", benchmark),
            )
        ]
        return Tree(tuple(item for item in tree.items if _touches(item.parts, places)), tree.cut)

    @property
    def items(self) -> list[Item]:
        """Return what is judged: everything but what the harness keeps for itself."""
        return [item for item in self.tree.items if not _is_own(item.parts)]

    @property
    def unsealed(self) -> list[Item]:
        """Return the folders of attempts that were begun and not sealed."""
        return [
            item
            for item in self.tree.items
            if len(item.parts) == 4 and _ATTEMPT.fullmatch(item.name) and item.kind == "folder"
        ]

    @functools.cached_property
    def systems(self) -> Mapping[str, dict[str, object]]:
        """Return the description of each system that is looked at and whose file can be read."""
        read = {each.system: _read(each.system_file) for each in self.packages}
        return {name: system for name, system in read.items() if system is not None}

    def place(self, *parts: str) -> str:
        """Return the name of something in the folder, safe to show."""
        return self.packages[0].name_of(self.folder.joinpath(*parts))


def submissions_of(packages: Iterable[Package]) -> Iterator[Submission]:
    """Yield the submissions that ``packages`` belong to, sorted by round and organisation."""
    in_order = sorted(packages, key=lambda each: (each.root, each.org, each.system, each.benchmark))
    # One at a time: each remembers what stands in its folder.
    for (root, org), group in groupby(in_order, key=lambda each: (each.root, each.org)):
        yield Submission(root, org, tuple(group))


def _is_own(parts: tuple[str, ...]) -> bool:
    if len(parts) < 4 or parts[0] != "results":
        return False
    return bool(_ATTEMPT.fullmatch(parts[3]) or (len(parts) == 4 and _OWN.fullmatch(parts[3])))


def _touches(parts: tuple[str, ...], places: Sequence[tuple[str, ...]]) -> bool:
    """Tell whether one of ``places`` is above, at or below ``parts``."""
    return any(parts[: len(place)] == place[: len(parts)] for place in places)


def _read(path: Path) -> dict[str, object] | None:
    try:
        content = read_bounded(path, _SYSTEM_CAP_BYTES)
        return parse_object(content.decode("utf-8-sig", errors="replace"))
    except (OSError, ValueError):
        return None  # found while reading the results
