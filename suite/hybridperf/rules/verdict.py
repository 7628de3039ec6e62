"""Verdicts: what a check says of logs, of results, and of all that was checked."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from hybridperf.evidence.trust import Trust
from hybridperf.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hybridperf.log.package import Package

__all__ = [
    "LogVerdict",
    "Outcome",
    "ResultVerdict",
    "Verdict",
    "most_windows_fail",
    "result_verdict",
]

RULESET: Final = "hybridperf-1.0"  #: of this suite
VERSION: Final = 2  #: of the JSON; 1 had neither version nor results


class Outcome(enum.StrEnum):
    """What is said of a log or result; what a ruleset has no rules for is not judged."""

    VALID = "valid"
    INVALID = "invalid"
    NOT_JUDGED = "not judged"

    @property
    def valid(self) -> bool | None:
        """Return whether it is valid; None if it was not judged."""
        return None if self is Outcome.NOT_JUDGED else self is Outcome.VALID


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """The verdict on one log."""

    path: str
    outcome: Outcome
    why: str = ""  #: the first error
    missed: bool = False  #: it breaks only what makes a run count as the slowest
    began_ms: int | None = None  #: time of run_start

    def as_json(self) -> dict[str, object]:
        """Return the verdict in the documented JSON schema."""
        return {"path": self.path, "valid": self.outcome.valid, "verdict": self.outcome.value}


@dataclass(frozen=True, slots=True)
class ResultVerdict:
    """The verdict on one result."""

    package: Package
    ruleset: str
    division: str  #: as its logs state it, "" if they do not
    outcome: Outcome
    why: str  #: what makes it invalid, or is worth knowing
    logs: tuple[LogVerdict, ...]
    trust: Trust = field(default_factory=Trust)  #: self-reported, but for results of this suite

    def as_json(self) -> dict[str, object]:
        """Return the verdict in the documented JSON schema."""
        return {
            "path": self.package.name,
            "organisation": self.package.org,
            "system": self.package.system,
            "benchmark": self.package.benchmark,
            "division": self.division,
            "ruleset": self.ruleset,
            "verdict": self.outcome.value,
            "why": self.why,
            **asdict(self.trust),
            "logs": len(self.logs),
            "valid_logs": sum(log.outcome is Outcome.VALID for log in self.logs),
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check: logs, results, and all findings."""

    path: str
    logs: tuple[str, ...]
    findings: tuple[Finding, ...]
    ruleset: str = RULESET
    mode: str = "strict"
    results: tuple[ResultVerdict, ...] = ()
    alone: tuple[LogVerdict, ...] = ()  #: logs that were checked by themselves

    @property
    def valid(self) -> bool:
        """Tell whether no result, no log by itself and nothing outside of them is invalid."""
        if not self.all_logs:
            return not any(finding.severity is Severity.ERROR for finding in self.findings)
        return Outcome.INVALID not in self._outcomes and not self.errors_elsewhere

    @property
    def errors_elsewhere(self) -> list[Finding]:
        """Return the errors in other files than logs, such as descriptions of systems."""
        inside = {log.path for log in self.all_logs}
        inside |= {result.package.name for result in self.results}
        return [
            each
            for each in self.findings
            if each.severity is Severity.ERROR and each.path not in inside
        ]

    @property
    def judged(self) -> bool:
        """Tell whether anything was judged."""
        return bool(self._outcomes - {Outcome.NOT_JUDGED})

    @property
    def _outcomes(self) -> set[Outcome]:
        return {each.outcome for each in self.results} | {each.outcome for each in self.alone}

    @property
    def all_logs(self) -> list[LogVerdict]:
        """Return the verdicts on all logs."""
        return [*self.alone, *(log for result in self.results for log in result.logs)]

    def as_json(self) -> dict[str, object]:
        """Return the verdict in the documented JSON schema."""
        severities = Counter(str(finding.severity) for finding in self.findings)
        return {
            "version": VERSION,
            "valid": self.valid,
            "ruleset": self.ruleset,
            "mode": self.mode,
            "counts": {
                "results": _counts(result.outcome for result in self.results),
                "logs": _counts(log.outcome for log in self.all_logs),
                "findings": {each.value: severities[each] for each in Severity},
            },
            "results": [result.as_json() for result in self.results],
            "logs": [log.as_json() for log in self.all_logs],
            "findings": [finding.as_json() for finding in self.findings],
        }


def _counts(outcomes: Iterable[Outcome]) -> dict[str, int]:
    counts = Counter(outcomes)
    return {each.value: counts[each] for each in Outcome}


def most_windows_fail(missed: Sequence[bool], asked: int, most: int) -> bool:
    """Tell whether the median of the windows of ``asked`` runs has more than ``most`` misses.

    ``missed`` is in the order in which the runs began. With no more runs than ``asked`` there is
    one window.
    """
    windows = max(1, len(missed) - asked + 1)
    failing = sum(sum(missed[first : first + asked]) > most for first in range(windows))
    return windows - failing <= windows // 2  # failing windows are the slowest


def result_verdict(
    package: Package,
    ruleset: str,
    division: str,
    logs: tuple[LogVerdict, ...],
    findings: Iterable[Finding],
    runs: tuple[int | None, int] | None,
) -> ResultVerdict:
    """Judge a result by the verdicts on its ``logs`` and by ``findings`` in it as a whole.

    ``runs`` is how many runs are asked for, if known, and how many of them may miss the target;
    None if the ruleset does not judge the result.
    """
    if runs is None:
        known = f"no rules for {package.benchmark:.60}"
        outcome = Outcome.NOT_JUDGED
        return ResultVerdict(package, ruleset, division, outcome, known, logs)
    asked, most = runs
    wrong = [log for log in logs if log.outcome is Outcome.INVALID]
    broken = [log for log in wrong if not log.missed]
    errors = [each for each in findings if each.severity is Severity.ERROR]
    in_order = sorted(logs, key=lambda log: (log.began_ms is None, log.began_ms or 0))
    missed = [log.outcome is Outcome.INVALID for log in in_order]
    outcome, why = Outcome.INVALID, ""
    if errors:
        why = _words(errors[0])
    elif broken:
        why = f"{_count(len(broken), 'log')} invalid: {_name(broken[0])}: {broken[0].why}"
    elif asked is not None and len(logs) < asked:
        why = f"{len(logs)} of {asked} runs"
    elif most_windows_fail(missed, asked or len(logs), most):
        why = f"{len(wrong)} of {len(logs)} logs invalid, at most {most} may be: "
        why += f"{_name(wrong[0])}: {wrong[0].why}"
    else:
        outcome = Outcome.VALID
        if wrong:
            why = f"{_count(len(wrong), 'run')} counted as slowest: {_name(wrong[0])}: "
            why += wrong[0].why
    return ResultVerdict(package, ruleset, division, outcome, why, logs)


def first_errors(findings: Iterable[Finding]) -> Mapping[str, Finding]:
    """Return the first error of every path."""
    first: dict[str, Finding] = {}
    for finding in findings:
        if finding.severity is Severity.ERROR:
            first.setdefault(finding.path, finding)
    return first


def log_verdict(path: str, error: Finding | None, **fields: object) -> LogVerdict:
    """Return the verdict on a log whose first error is ``error``."""
    if error is None:
        return LogVerdict(path, Outcome.VALID, **fields)  # type: ignore[arg-type]  # of its fields
    return LogVerdict(path, Outcome.INVALID, _words(error), **fields)  # type: ignore[arg-type]  # as above


def _words(finding: Finding) -> str:
    return f"{finding.rule}: expected {finding.expected}, found {finding.found}"


def _name(log: LogVerdict) -> str:
    return log.path.rpartition("/")[2]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
