"""Read leaderboard entries: results with their scores and findings."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.findings import Finding, Severity
from hybridperf.log.package import Result, find_results, read_result
from hybridperf.rules.check import check_result
from hybridperf.score.official import Official, official_of
from hybridperf.score.ranking import Standing, standing_of

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.score.score import ResultScore

__all__ = ["UNFINISHED", "Entry", "read_entries"]

UNFINISHED: Final = frozenset({"result.run_count"})  #: errors that additional runs resolve


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
    def standing(self) -> Standing | Literal["invalid"]:
        """Return whether the result is ranked, or else the category of the reason."""
        broken = {finding.rule for finding in self.errors}
        if broken - UNFINISHED:
            return "invalid"
        standing = standing_of(self.official)[0]
        return "provisional" if broken and standing == "ranked" else standing

    @property
    def no_place(self) -> str:
        """Return the reason why the result has no place; "" if it has one."""
        if self.standing == "invalid":
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
    """Read, check and score every result at or below ``root``, sorted by name."""
    results = (read_result(package) for package in find_results(root))
    return [Entry(result, official_of(result), tuple(check_result(result))) for result in results]
