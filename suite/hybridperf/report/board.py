"""Group comparable results into leaderboards and order them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.score.ranking import Decision, decide, with_places
from hybridperf.score.scaling import plan_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.report.judgement import JudgedResult

__all__ = ["Board", "Row", "boards", "contents_of"]

#: tasks, divisions and versions whose names alone make a leaderboard's anchor
_PLAIN: Final = re.compile(r"[a-z0-9_]+/[a-z0-9_]+ (closed|open)( [0-9]{1,4})?")


@dataclass(frozen=True, slots=True)
class Row:
    """A result on a leaderboard that is not broken."""

    entry: JudgedResult  #: with its place, if any
    decision: Decision  #: comparison with the first result of the leaderboard

    @property
    def missed(self) -> bool:
        """Tell whether the result missed the target in all its completed runs."""
        runs = self.entry.score.completed
        return bool(runs) and all(run.completion == "missed" for run in runs)

    @property
    def timed(self) -> bool:
        """Tell whether the result has a finite time to train."""
        mean_s = self.entry.score.mean_s
        return mean_s is not None and math.isfinite(mean_s) and not self.missed


@dataclass(frozen=True, slots=True)
class Board:
    """The leaderboard of one task version in one division."""

    benchmark: str
    version: str
    division: str
    rows: tuple[Row, ...]  #: ranked results first, each group sorted by time to train
    invalid: tuple[JudgedResult, ...]

    @property
    def anchor(self) -> str:
        """Return the HTML id, a function of task, division and version alone.

        Version 1 is left out; names that another board's could be mistaken for bring a hash.
        """
        version = "" if self.version == "1" else self.version
        name = " ".join(filter(None, (self.benchmark, self.division, version)))
        words = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:80]
        if _PLAIN.fullmatch(name):
            return words
        names = (self.benchmark, self.division, self.version)
        digest = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        return f"board-{words}-{digest[:8]}"

    @property
    def name(self) -> str:
        """Return the division, and the version where it is not the first."""
        version = f", version {self.version}" if self.version not in {"", "1"} else ""
        return f"{self.division or 'unknown division'}{version}"

    @property
    def fastest(self) -> Row | None:
        """Return the first result, if it has a time."""
        return self.rows[0] if self.rows and self.rows[0].timed else None

    @property
    def runner_up(self) -> Row | None:
        """Return the second result, if it may have a place like the first."""
        first, *others = self.rows or (None,)
        second = others[0] if others else None
        if first is None or second is None or not second.timed:
            return None
        return second if second.entry.standing == first.entry.standing else None

    @property
    def one_process(self) -> Row | None:
        """Return the fastest result of one process on hardware like the first result's.

        It is of the same organisation and kind of accelerator or processor.
        """
        if not self.rows:
            return None
        first = self.rows[0].entry.official
        kind = first.score.org, first.accelerator
        for row in self.rows:
            official = row.entry.official
            same = (official.score.org, official.accelerator) == kind
            if row.timed and same and plan_ranks(official.score.plan) == 1:
                return row
        return None

    @property
    def entries(self) -> list[JudgedResult]:
        """Return all results, with broken ones last."""
        return [*(row.entry for row in self.rows), *self.invalid]

    @property
    def metric(self) -> str:
        """Return the name of the quality metric."""
        return next(
            (word for each in self.entries if (word := each.task_fact("metric"))), "quality"
        )

    @property
    def target(self) -> float | None:
        """Return the quality target; None if unknown."""
        return next((t for each in self.entries if (t := each.score.target) is not None), None)


def boards(entries: Iterable[JudgedResult]) -> list[Board]:
    """Return one leaderboard per task version and division, sorted by name."""
    groups: dict[tuple[str, str, str], list[JudgedResult]] = {}
    for entry in entries:
        key = (entry.benchmark, entry.score.version, entry.official.division)
        groups.setdefault(key, []).append(entry)
    return [_board(*key, groups[key]) for key in sorted(groups)]


def contents_of(boards: Iterable[Board]) -> dict[str, list[Board]]:
    """Return the leaderboards of each task, in order."""
    contents: dict[str, list[Board]] = {}
    for board in boards:
        contents.setdefault(board.benchmark, []).append(board)
    return contents


def _board(benchmark: str, version: str, division: str, entries: list[JudgedResult]) -> Board:
    valid = [each for each in entries if each.standing != "broken"]
    placed = with_places([each.official for each in valid])
    shown = sorted(
        (
            dataclasses.replace(each, official=official)
            for each, official in zip(valid, placed, strict=True)
        ),
        key=_order,
    )
    rows = tuple(Row(each, decide(shown[0].official, each.official)) for each in shown)
    invalid = tuple(each for each in entries if each.standing == "broken")
    return Board(benchmark, version, division, rows, invalid)


def _order(entry: JudgedResult) -> tuple[object, ...]:
    """Return a sort key: ranked results first, then by time to train, unknown times last.

    Results with the same changes of plan have places of their own, after the other results.
    """
    mean_s, ranked = entry.score.time_s, entry.standing == "ranked"
    segments = entry.score.segments if ranked else ()
    return not ranked, segments, mean_s is None, mean_s or 0.0
