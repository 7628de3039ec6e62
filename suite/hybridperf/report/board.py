"""Read leaderboard entries, group comparable ones into leaderboards and order them."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridperf.findings import Finding, Severity
from hybridperf.log.package import Result, find_results, read_result
from hybridperf.report.judged import UNFINISHED, own_validity
from hybridperf.rules.check import Judged, compared, judge_result
from hybridperf.score.official import Official, official_of
from hybridperf.score.ranking import Decision, Standing, decide, standing_of, with_places

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hybridperf.score.score import ResultScore

__all__ = ["Board", "Entry", "Row", "boards", "read_entries"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A result with its official score and its findings."""

    result: Result
    official: Official
    findings: tuple[Finding, ...]

    @property
    def score(self) -> ResultScore:
        """Return the score, without the place."""
        return self.official.score

    @property
    def errors(self) -> list[Finding]:
        """Return the findings that make the result invalid."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    @property
    def valid(self) -> bool:
        """Tell whether no finding is an error."""
        return not self.errors

    @property
    def standing(self) -> Standing:
        """Return whether the result is ranked, or else the category of the reason."""
        broken = {finding.rule for finding in self.errors}
        if broken - UNFINISHED:
            return "invalid"
        standing = standing_of(self.official)[0]
        return "provisional" if broken and standing == "ranked" else standing

    @property
    def no_place(self) -> str:
        """Return the reason why the result has no place; "" if it has one."""
        if self.standing == "invalid" and self.errors:
            return self.errors[0].sentence
        return standing_of(self.official)[1] or "".join(each.sentence for each in self.errors[:1])

    @property
    def benchmark(self) -> str:
        """Return the task name in the logs, or else the name of the result's folder."""
        return self.score.benchmark or self.result.package.benchmark

    @property
    def anchor(self) -> str:
        """Return the HTML id of the result, a function of organisation, system and benchmark."""
        package = self.result.package
        names = (package.org, package.system, package.benchmark)
        digest = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        words = re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")
        return f"result-{words[:80]}-{digest[:8]}"

    def task_fact(self, *keys: str) -> str:
        """Return a string of the task in the first run's manifest; ``""`` if there is none."""
        runs = self.result.runs
        value = runs[0].fact("task", *keys) if runs else None
        return value if isinstance(value, str) else ""


def read_entries(root: Path) -> list[Entry]:
    """Read, check and score every result at or below ``root``, sorted by name.

    Raises:
        UserError: as `find_results`.
    """
    results = [read_result(package) for package in find_results(root)]
    judged = compared(map(judge_result, results))
    return [_entry(result, each) for result, each in zip(results, judged, strict=True)]


def _entry(result: Result, judged: Judged) -> Entry:
    official = official_of(result, validity=own_validity(result, judged.findings))
    return Entry(result, dataclasses.replace(official, trust=judged.trust), judged.findings)


@dataclass(frozen=True, slots=True)
class Row:
    """A valid result on a leaderboard."""

    entry: Entry  #: with its place, if any
    decision: Decision  #: comparison with the first result of the leaderboard


@dataclass(frozen=True, slots=True)
class Board:
    """The leaderboard of one task version in one division."""

    benchmark: str
    version: str
    division: str
    rows: tuple[Row, ...]  #: ranked results first, each group sorted by time to train
    invalid: tuple[Entry, ...]

    @property
    def entries(self) -> list[Entry]:
        """Return all results, with invalid ones last."""
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


def boards(entries: Iterable[Entry]) -> list[Board]:
    """Return one leaderboard per task version and division, sorted by name."""
    groups: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in entries:
        key = (entry.benchmark, entry.score.version, entry.official.division)
        groups.setdefault(key, []).append(entry)
    return [_board(*key, groups[key]) for key in sorted(groups)]


def _board(benchmark: str, version: str, division: str, entries: list[Entry]) -> Board:
    valid = sorted((each for each in entries if each.standing != "invalid"), key=_order)
    ranked = [each.official for each in valid if each.standing == "ranked"]
    placed = [
        dataclasses.replace(each, official=official)
        for each, official in zip(valid, with_places(ranked), strict=False)
    ]
    shown = placed + valid[len(placed) :]
    rows = tuple(Row(each, decide(shown[0].official, each.official)) for each in shown)
    invalid = tuple(each for each in entries if each.standing == "invalid")
    return Board(benchmark, version, division, rows, invalid)


def _order(entry: Entry) -> tuple[bool, bool, float]:
    """Return a sort key: ranked results first, then by time to train, unknown times last."""
    mean_s = entry.score.olympic_mean_s
    return entry.standing != "ranked", mean_s is None, mean_s or 0.0
