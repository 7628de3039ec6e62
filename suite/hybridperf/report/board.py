"""Group comparable results into leaderboards and order them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridperf.score.ranking import Decision, decide, with_places

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.report.judgement import JudgedResult

__all__ = ["Board", "Row", "boards"]


@dataclass(frozen=True, slots=True)
class Row:
    """A result on a leaderboard that is not broken."""

    entry: JudgedResult  #: with its place, if any
    decision: Decision  #: comparison with the first result of the leaderboard


@dataclass(frozen=True, slots=True)
class Board:
    """The leaderboard of one task version in one division."""

    benchmark: str
    version: str
    division: str
    rows: tuple[Row, ...]  #: ranked results first, each group sorted by time to train
    invalid: tuple[JudgedResult, ...]

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


def _board(benchmark: str, version: str, division: str, entries: list[JudgedResult]) -> Board:
    valid = sorted((each for each in entries if each.standing != "broken"), key=_order)
    ranked = [each.official for each in valid if each.standing == "ranked"]
    placed = [
        dataclasses.replace(each, official=official)
        for each, official in zip(valid, with_places(ranked), strict=False)
    ]
    shown = placed + valid[len(placed) :]
    rows = tuple(Row(each, decide(shown[0].official, each.official)) for each in shown)
    invalid = tuple(each for each in entries if each.standing == "broken")
    return Board(benchmark, version, division, rows, invalid)


def _order(entry: JudgedResult) -> tuple[bool, bool, float]:
    """Return a sort key: ranked results first, then by time to train, unknown times last."""
    mean_s = entry.score.olympic_mean_s
    return entry.standing != "ranked", mean_s is None, mean_s or 0.0
