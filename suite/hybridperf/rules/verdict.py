"""Verdicts: what a check says of logs, of results, and of all that was checked."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode
from hybridperf.findings import UNREADABLE, Finding, Severity
from hybridperf.rules.evidence import Trust
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hybridperf.log.package import Package

__all__ = [
    "COPIES",
    "DISPUTED",
    "RULESET",
    "LogVerdict",
    "Outcome",
    "ResultVerdict",
    "Verdict",
    "is_shortfall",
    "log_verdict",
    "most_windows_fail",
    "result_verdict",
    "word_of",
]

RULESET: Final = "hybridperf-1.0"  #: of this suite
#: of the JSON; 3 had verdict besides judgement, 2 rung for level, 1 neither version nor results
VERSION: Final = 4
COPIES: Final = "result.copies"
DISPUTED: Final = "result.disputed"
_UNFINISHED: Final = frozenset({"result.run_count", "mlperf.runs"})  #: that further runs resolve
_MISSED_BY_RUN: Final = "mlperf.target"  #: of one log; some runs may miss the target
_MISSED: Final = frozenset({"result.missed", "mlperf.missed", _MISSED_BY_RUN})
_WITHDRAWN: Final = frozenset({Judgement.SUPERSEDED, Judgement.WITHDRAWN})
_PUBLISHABLE: Final = frozenset({Judgement.VALID, Judgement.MISSED, *_WITHDRAWN})


class Outcome(enum.StrEnum):
    """What is said of a log; what a ruleset has no rules for is not judged."""

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
    rule: str = ""  #: that it breaks
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
    judgement: Judgement
    why: str  #: what makes it invalid, or is worth knowing
    logs: tuple[LogVerdict, ...]
    trust: Trust = field(default_factory=Trust)  #: self-reported, but for results of this suite

    @property
    def publishable(self) -> bool:
        """Tell whether the result may stand on a leaderboard, with a place or as it ended."""
        return self.judgement in _PUBLISHABLE

    def status(self, *, publish: bool = False) -> ExitCode:
        """Return the exit status of the result; the argument is that of `Verdict.status`."""
        of_mlperf = self.ruleset != RULESET
        if publish or of_mlperf:
            unjudged = self.judgement is Judgement.NOT_JUDGED and not publish
            passes = unjudged or self.publishable
            passes = passes and not (of_mlperf and self.judgement is Judgement.MISSED)
            return ExitCode.OK if passes else ExitCode.INVALID
        if self.judgement in {Judgement.BROKEN, Judgement.DISPUTED}:
            return ExitCode.INVALID
        return ExitCode.MISSED if self.judgement is Judgement.MISSED else ExitCode.OK

    @property
    def withdrawn(self) -> bool:
        """Tell whether the publisher withdrew the result, or superseded it by another."""
        return self.judgement in _WITHDRAWN

    def as_json(self) -> dict[str, object]:
        """Return the verdict in the documented JSON schema."""
        return {
            "path": self.package.name,
            "organisation": self.package.org,
            "system": self.package.system,
            "benchmark": self.package.benchmark,
            "division": self.division,
            "ruleset": self.ruleset,
            "judgement": self.judgement.value,
            "why": self.why,
            "level": self.trust.level,
            "evidence": self.trust.evidence,
            "lacks": self.trust.lacks,
            "unverified": self.trust.unverified,
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
        """Tell whether all that was judged is valid, or withdrawn, and nothing else is wrong."""
        kept = {Judgement.VALID, Judgement.NOT_JUDGED, *_WITHDRAWN}
        return self.sound and all(result.judgement in kept for result in self.results)

    @property
    def sound(self) -> bool:
        """Tell whether no log by itself and nothing outside of results breaks a rule."""
        if not self.all_logs:
            return not any(finding.severity is Severity.ERROR for finding in self.findings)
        broken = any(log.outcome is Outcome.INVALID for log in self.alone)
        return not broken and not self.errors_elsewhere

    def status(self, *, publish: bool = False) -> ExitCode:
        """Return the exit status, by the worst of the judgements (docs/commands.md).

        With ``publish``, only results that may be published pass. By a ruleset of MLPerf only valid
        results do, as with the checker of the round.
        """
        statuses = {result.status(publish=publish) for result in self.results}
        if ExitCode.INVALID in statuses or not self.sound:
            return ExitCode.INVALID
        return ExitCode.MISSED if ExitCode.MISSED in statuses else ExitCode.OK

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
    def unreadable(self) -> list[Finding]:
        """Return the files and folders that this machine cannot read."""
        return [finding for finding in self.findings if finding.rule == UNREADABLE]

    @property
    def judged(self) -> bool:
        """Tell whether anything was judged."""
        results = any(each.judgement is not Judgement.NOT_JUDGED for each in self.results)
        return results or any(each.outcome is not Outcome.NOT_JUDGED for each in self.alone)

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
                "results": _counts(Judgement, (result.judgement for result in self.results)),
                "logs": _counts(Outcome, (log.outcome for log in self.all_logs)),
                "findings": {each.value: severities[each] for each in Severity},
            },
            "results": [result.as_json() for result in self.results],
            "logs": [log.as_json() for log in self.all_logs],
            "findings": [finding.as_json() for finding in self.findings],
        }


def _counts(words: type[enum.StrEnum], said: Iterable[enum.StrEnum]) -> dict[str, int]:
    counts = Counter(said)
    return {each.value: counts[each] for each in words}


def is_shortfall(finding: Finding) -> bool:
    """Tell whether an error says that runs missed the target or are yet to be made."""
    return finding.rule in _MISSED | _UNFINISHED


def word_of(finding: Finding) -> str:
    """Return the judgement that a finding leads to, or its severity if that breaks a rule."""
    if finding.severity is not Severity.ERROR or finding.rule == _MISSED_BY_RUN:
        return finding.severity.value
    judgement = _judgement_of({finding.rule})
    return finding.severity.value if judgement is Judgement.BROKEN else judgement.value


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
    logs: Iterable[LogVerdict],
    findings: Iterable[Finding],
    runs: tuple[int | None, int] | None,
    counts_as_slowest: Callable[[str], bool] = lambda _: False,
) -> ResultVerdict:
    """Judge a result, and each of its ``logs`` anew, by the ``findings`` in it.

    ``runs`` is how many runs are asked for, if known, and how many of them may miss the target;
    None if the ruleset does not judge the result. A log that violates only rules which
    ``counts_as_slowest`` names is that of a run that missed the target.
    """
    errors, elsewhere = dict[str, list[Finding]](), list[Finding]()
    by_path = {log.path: log for log in logs}
    for finding in findings:
        if finding.path not in by_path:
            elsewhere.append(finding)
        elif finding.severity is Severity.ERROR:
            errors.setdefault(finding.path, []).append(finding)
    judged = [
        _log_of_result(log, errors.get(path, []), counts_as_slowest)
        if runs is not None
        else LogVerdict(path, Outcome.NOT_JUDGED, began_ms=log.began_ms)
        for path, log in by_path.items()
    ]
    judgement, why = _judged(package, tuple(judged), elsewhere, runs)
    return ResultVerdict(package, ruleset, division, judgement, why, tuple(judged))


def _log_of_result(
    log: LogVerdict, errors: Sequence[Finding], counts_as_slowest: Callable[[str], bool]
) -> LogVerdict:
    beyond = [each for each in errors if not counts_as_slowest(each.rule)]
    error = next(iter(beyond or errors), None)
    return log_verdict(log.path, error, missed=not beyond, began_ms=log.began_ms)


def _judged(
    package: Package,
    logs: tuple[LogVerdict, ...],
    findings: list[Finding],
    runs: tuple[int | None, int] | None,
) -> tuple[Judgement, str]:
    """Return the judgement of `result_verdict`, and why."""
    errors = [each for each in findings if each.severity is Severity.ERROR]
    barred = [f"{_name(log)}: {log.why}" for log in logs if log.rule == UNREADABLE]
    barred += [f"{each.path}: {_words(each)}" for each in errors if each.rule == UNREADABLE]
    if barred:
        more = f", and {len(barred) - 1} more" if len(barred) > 1 else ""
        return Judgement.NOT_JUDGED, f"{barred[0]}{more}"
    if runs is None:
        return Judgement.NOT_JUDGED, f"no rules for {package.benchmark:.60}"
    asked, most = runs
    wrong = [log for log in logs if log.outcome is Outcome.INVALID]
    broken = [log for log in wrong if not log.missed]
    in_order = sorted(logs, key=lambda log: (log.began_ms is None, log.began_ms or 0))
    missed = [log.outcome is Outcome.INVALID for log in in_order]
    reasons = [(each.rule, _words(each)) for each in errors]
    invalid = f"{_count(len(broken), 'log')} invalid"
    reasons += [(log.rule, f"{invalid}: {_name(log)}: {log.why}") for log in broken]
    if reasons:
        judgement = _judgement_of({rule for rule, _ in reasons})
        return judgement, next(why for rule, why in reasons if _judgement_of({rule}) is judgement)
    if not logs or (asked is not None and len(logs) < asked):
        return Judgement.PROVISIONAL, f"{len(logs)} of {asked or 'any'} runs"
    if most_windows_fail(missed, asked or len(logs), most):
        why = f"{len(wrong)} of {len(logs)} logs invalid, at most {most} may be: "
        why += f"{_name(wrong[0])}: {wrong[0].why}"
        return _judgement_of({log.rule for log in wrong}), why
    if wrong:
        why = f"{_count(len(wrong), 'run')} counted as slowest: {_name(wrong[0])}: "
        return Judgement.VALID, f"{why}{wrong[0].why}"
    return Judgement.VALID, ""


def _judgement_of(rules: set[str]) -> Judgement:
    """Return the judgement on a result that breaks ``rules``, one at least."""
    if rules - {DISPUTED} - _MISSED - _UNFINISHED:
        return Judgement.BROKEN
    if DISPUTED in rules:
        return Judgement.DISPUTED
    return Judgement.MISSED if rules & _MISSED else Judgement.PROVISIONAL


def log_verdict(path: str, error: Finding | None, **fields: object) -> LogVerdict:
    """Return the verdict on a log whose first error is ``error``."""
    if error is None:
        return LogVerdict(path, Outcome.VALID, **fields)  # type: ignore[arg-type]  # of its fields
    outcome = Outcome.NOT_JUDGED if error.rule == UNREADABLE else Outcome.INVALID
    return LogVerdict(path, outcome, _words(error), error.rule, **fields)  # type: ignore[arg-type]  # as above


def _words(finding: Finding) -> str:
    return f"{finding.rule}: expected {finding.expected}, found {finding.found}"


def _name(log: LogVerdict) -> str:
    return log.path.rpartition("/")[2]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
