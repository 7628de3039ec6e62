"""The leaderboards: results that may be compared with each other, in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.report.rank import Rank, rank_ranges
from suite.report.why import Split, split_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from suite.report.entry import Entry

__all__ = ["Board", "Row", "boards"]


@dataclass(frozen=True, slots=True)
class Row:
    """A valid result on its board."""

    entry: Entry
    rank: Rank | None  #: None where it is not ranked
    split: Split | None  #: relative to the fastest result


@dataclass(frozen=True, slots=True)
class Board:
    """The results of one version of one task in one division."""

    benchmark: str
    version: str
    division: str
    rows: tuple[Row, ...]  #: by time to train, ranked ones first
    invalid: tuple[Entry, ...]

    @property
    def entries(self) -> list[Entry]:
        """Return all results, the invalid ones last."""
        return [*(row.entry for row in self.rows), *self.invalid]

    @property
    def metric(self) -> str:
        """Return what quality is measured by."""
        return next(
            (word for each in self.entries if (word := each.task_fact("metric"))), "quality"
        )

    @property
    def target(self) -> float | None:
        """Return the quality that must be reached."""
        return next((t for each in self.entries if (t := each.score.target) is not None), None)


def boards(entries: Iterable[Entry]) -> list[Board]:
    """Return one board for each task version and division, sorted by their names."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        key = (entry.benchmark, entry.score.version, entry.score.division)
        groups.setdefault(key, []).append(entry)
    return [_board(*key, groups[key]) for key in sorted(groups)]


def _board(benchmark: str, version: str, division: str, entries: list[Entry]) -> Board:
    ranked = sorted((each for each in entries if each.standing == "ranked"), key=_time_s)
    others = [each for each in entries if each.standing in {"provisional", "missed"}]
    others.sort(key=_time_s)
    fastest = (ranked + others)[0] if ranked + others else None
    ranks = rank_ranges([each.score.interval_s for each in ranked])
    rows = [
        Row(each, rank, _split(each, fastest)) for each, rank in zip(ranked, ranks, strict=True)
    ]
    rows += [Row(each, None, _split(each, fastest)) for each in others]
    invalid = tuple(each for each in entries if each.standing == "invalid")
    return Board(benchmark, version, division, tuple(rows), invalid)


def _split(entry: Entry, fastest: Entry | None) -> Split | None:
    return split_time(entry.score, fastest.score) if fastest else None


def _time_s(entry: Entry) -> float:
    return math.inf if entry.score.olympic_mean_s is None else entry.score.olympic_mean_s
