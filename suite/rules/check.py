"""Apply a ruleset to a result, or to a log on its own."""

from __future__ import annotations

import functools
import itertools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suite.findings import Finding, Severity
from suite.logs import keys
from suite.logs.package import SealedRun, find_results, read_result
from suite.logs.reader import read_log
from suite.logs.strict_json import exists
from suite.refusal import ExitCode, Refusal
from suite.rules import log_rules, result_rules, run_rules
from suite.rules.rule import RULES, Deviation, Rule
from suite.tasks.registry import find_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.logs.package import Result
    from suite.tasks.task import Task

__all__ = ["RULESET", "Verdict", "check_path", "check_result", "nothing_to_check"]

RULESET: Final = "hybridperf-1.0"
_REGISTERED: Final = (log_rules, run_rules, result_rules)  # importing them registers their rules
_MOST_SHOWN: Final = 100  # findings of a rule in a log, before the others are only counted
# A run that the harness ended is counted, not scored: only its form is judged.
_OF_ENDED_RUNS: Final = frozenset(
    {"log.time", "log.intervals", "log.order", "log.chain", "run.manifest", "run.task"}
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was checked, and everything found."""

    path: str
    logs: tuple[str, ...]
    findings: tuple[Finding, ...]
    ruleset: str = RULESET
    mode: str = "strict"

    @property
    def valid(self) -> bool:
        """Tell whether nothing was found that is an error."""
        return not any(finding.severity is Severity.ERROR for finding in self.findings)

    def as_json(self) -> dict[str, object]:
        """Return the fields of the published JSON contract."""
        wrong = {finding.path for finding in self.findings if finding.severity is Severity.ERROR}
        return {
            "valid": self.valid,
            "ruleset": self.ruleset,
            "mode": self.mode,
            "logs": [{"path": log, "valid": log not in wrong} for log in self.logs],
            "findings": [finding.as_json() for finding in self.findings],
        }


def check_path(path: Path) -> Verdict:
    """Check the log file ``path``, or every result at or below the folder ``path``.

    Raises:
        Refusal: exit status 4 where there is nothing to check.
    """
    if not exists(path):
        raise nothing_to_check(path)
    if path.is_file():
        run = SealedRun(0, read_log(path), None)
        alone = [
            finding for finding in _check_run(run) if not finding.rule.startswith("run.manifest")
        ]
        return Verdict(str(path), (run.log.path,), tuple(alone))
    packages = find_results(path) if path.is_dir() else []
    if not packages:
        raise nothing_to_check(path)
    results = [read_result(package) for package in packages]
    logs = tuple(run.log.path for result in results for run in result.runs)
    findings = [finding for result in results for finding in check_result(result)]
    return Verdict(str(path), logs, tuple(findings))


def nothing_to_check(path: Path) -> Refusal:
    """Return the refusal of a ``path`` without logs."""
    finding = Finding(
        "check.path",
        "a log, or a folder with <org>/results/<system>/<benchmark>/result_<n>.txt in it",
        "no such file or folder" if not exists(path) else "no results",
        "name the folder given to 'hybridperf run --out'",
        path=str(path),
    )
    return Refusal(finding, ExitCode.ENVIRONMENT)


def check_result(result: Result) -> list[Finding]:
    """Return everything that the ruleset finds in ``result``; never raises for what it contains."""
    findings = list(result.findings)
    for run in result.runs:
        findings += _check_run(run)
    task = _task_of(result.runs[0]) if result.runs else None
    if task is not None:
        folder = result.package.folder.relative_to(result.package.root).as_posix()
        places = {run.number: run.log.path for run in result.runs}
        for rule, parameters in _ruleset("result"):
            for deviation in rule.check(result, task, **parameters):
                path = folder if deviation.run is None else places[deviation.run]
                findings.append(_finding(rule, deviation, path))
    return findings


def _check_run(run: SealedRun) -> Iterator[Finding]:
    yield from run.log.findings
    task = _task_of(run)
    if task is None:
        yield Finding(
            "run.benchmark",
            "submission_benchmark to name a task of this suite",
            f"{run.log.value(keys.SUBMISSION_BENCHMARK)!r:.80}",
            "'hybridperf list' shows the tasks",
            path=run.log.path,
        )
        return
    ended = run.log.first(keys.ENDING) is not None
    for rule, parameters in _ruleset("run"):
        if not ended or rule.id in _OF_ENDED_RUNS:
            deviations = iter(rule.check(run, task, **parameters))
            for deviation in itertools.islice(deviations, _MOST_SHOWN):
                yield _finding(rule, deviation, run.log.path)
            if more := sum(1 for _ in deviations):
                rest = Deviation("no more such lines", f"{more} more")
                yield _finding(rule, rest, run.log.path)


def _finding(rule: Rule, deviation: Deviation, path: str) -> Finding:
    return Finding(
        rule.id,
        deviation.expected,
        deviation.found,
        rule.remedy,
        path,
        deviation.line,
        rule.severity,
    )


def _task_of(run: SealedRun) -> Task | None:
    try:
        return find_task(str(run.log.value(keys.SUBMISSION_BENCHMARK)))
    except Refusal:
        return None


@functools.cache
def _ruleset(scope: str) -> list[tuple[Rule, dict[str, Any]]]:
    table = tomllib.loads((Path(__file__).parent / "rulesets" / f"{RULESET}.toml").read_text())
    return [
        (RULES[name], parameters)
        for name, parameters in table["rules"].items()
        if RULES[name].scope == scope
    ]
