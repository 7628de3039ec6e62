"""One line of the leaderboard: a result, what it scored, and what the rules say of it."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from suite.findings import Finding, Severity
from suite.logs.package import Result, find_results, read_result
from suite.report.facts import text_of
from suite.rules.check import check_result
from suite.scores.score import ResultScore, score_result

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Entry", "Standing", "read_entries"]

Standing = Literal["ranked", "provisional", "missed", "invalid"]

_UNFINISHED: Final = frozenset({"result.run_count"})  #: errors that more runs mend


@dataclass(frozen=True, slots=True)
class Entry:
    """A result, its score and its findings."""

    result: Result
    score: ResultScore
    findings: tuple[Finding, ...]

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
        """Return whether the result is ranked, and if not, why."""
        mean_s = self.score.olympic_mean_s
        broken = {finding.rule for finding in self.errors}
        if broken - _UNFINISHED:
            return "invalid"
        if broken or mean_s is None or len(self.score.completed) < (self.score.required_runs or 0):
            return "provisional"
        return "ranked" if math.isfinite(mean_s) else "missed"

    @property
    def benchmark(self) -> str:
        """Return the task's name, or its folder's where no log says it."""
        return self.score.benchmark or self.result.package.benchmark

    @property
    def anchor(self) -> str:
        """Return the id of the result on the page; it lasts as long as the result's names do."""
        package = self.result.package
        names = (package.org, package.system, package.benchmark)
        digest = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        words = re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")
        return f"result-{words[:80]}-{digest[:8]}"

    def task_fact(self, *keys: str) -> str:
        """Return a text of the manifest's task, or ``""``; all runs of a result share one task."""
        runs = self.result.runs
        return (text_of(runs[0], "task", *keys) if runs else None) or ""


def read_entries(root: Path) -> list[Entry]:
    """Read, check and score every result at or below ``root``, in the order of their names."""
    results = (read_result(package) for package in find_results(root))
    return [Entry(result, score_result(result), tuple(check_result(result))) for result in results]
