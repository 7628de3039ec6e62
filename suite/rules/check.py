"""Apply a ruleset to a result, or to a log on its own."""

from __future__ import annotations

import functools
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from suite.findings import Finding, Severity, visible
from suite.jobs import spread
from suite.logs import keys
from suite.logs.package import TASK_FILE, SealedRun, find_results, read_result
from suite.logs.reader import read_log
from suite.logs.strict_json import exists
from suite.logs.submission import submissions_of
from suite.refusal import ExitCode, Refusal
from suite.rules import (
    derived_rules,
    layout_rules,
    log_rules,
    package_rules,
    plausibility_rules,
    result_rules,
    run_rules,
    scaling_rules,
    sums_rules,
    system_rules,
)
from suite.rules.apply import apply_all, of_scope
from suite.rules.bounded import bounded
from suite.rules.own_task import read_own_task, task_of, unknown_task
from suite.rules.reading import read_in_vain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.logs.package import Package, Result
    from suite.rules.rule import Rule, Scope
    from suite.tasks.task import Task

__all__ = ["RULESET", "Verdict", "check_path", "check_result", "nothing_to_check"]

RULESET: Final = "hybridperf-1.0"
_REGISTERED: Final = (  # importing them registers their rules
    log_rules,
    run_rules,
    derived_rules,
    result_rules,
    package_rules,
    layout_rules,
    sums_rules,
    system_rules,
    plausibility_rules,
    scaling_rules,
)
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


def check_path(path: Path, jobs: int = 1) -> Verdict:
    """Check the log file ``path``, or every result at or below the folder ``path``.

    Raises:
        Refusal: exit status 4 where there is nothing to check.
    """
    if not exists(path) or not os.access(path, os.R_OK):
        raise nothing_to_check(path)
    if path.is_file():
        run = SealedRun(0, read_log(path), None)
        beside = path.with_name(TASK_FILE)
        own, alone = read_own_task(beside, visible(str(beside)), [run])
        alone += [
            finding
            for finding in _check_run(run, own)
            if not finding.rule.startswith("run.manifest")
        ]
        return Verdict(str(path), (run.log.path,), tuple(alone))
    packages = find_results(path) if path.is_dir() else []
    if not packages:
        raise nothing_to_check(path)
    names: list[str] = []
    findings = tuple(bounded(_found_in(packages, names, jobs), visible(str(path))))
    return Verdict(str(path), tuple(names), findings)


def _found_in(packages: list[Package], names: list[str], jobs: int) -> Iterator[Finding]:
    """Yield what is found in results and their submissions; ``names`` gets those of the logs."""
    for logs, findings in spread(_check_package, packages, jobs):
        names += logs
        yield from findings
    for submission in submissions_of(packages):
        yield from apply_all(_ruleset("submission"), submission, path=submission.org)


def _check_package(package: Package) -> tuple[list[str], list[Finding]]:
    result = read_result(package)
    return [run.log.path for run in result.runs], check_result(result)


def nothing_to_check(path: Path) -> Refusal:
    """Return the refusal of a ``path`` without logs, or that this user may not read."""
    found = "no such file or folder" if not exists(path) else "no results"
    remedy = "name a log, or the folder given to 'hybridperf run --out'"
    if exists(path) and not os.access(path, os.R_OK):
        found, remedy = "one that this user may not read", "ask its owner for leave to read it"
    finding = Finding(
        "check.path",
        "a log, or a folder with <org>/results/<system>/<benchmark>/result_<n>.txt in it",
        found,
        remedy,
        path=str(path),
    )
    return Refusal(finding, ExitCode.ENVIRONMENT)


def check_result(result: Result) -> list[Finding]:
    """Return everything that the ruleset finds in ``result``; never raises for what it contains."""
    return list(bounded(_found_in_result(result), result.package.name))


def _found_in_result(result: Result) -> Iterator[Finding]:
    yield from result.findings
    package = result.package
    own, wrong = read_own_task(package.task_file, package.name_of(package.task_file), result.runs)
    yield from wrong
    for run in result.runs:
        yield from _check_run(run, own)
    task = next(filter(None, (task_of(run, own) for run in result.runs)), None)
    if task is not None:
        places = {run.number: run.log.path for run in result.runs}
        rules = _ruleset("result")
        yield from apply_all(rules, result, task, path=package.name, runs=places)


def _check_run(run: SealedRun, own: Task | None) -> Iterator[Finding]:
    if in_vain := read_in_vain(run.log):
        yield from in_vain
        return
    yield from run.log.findings
    task = task_of(run, own)
    if task is None:
        yield unknown_task(run, own)
        return
    ended = run.log.first(keys.ENDING) is not None
    rules = [each for each in _ruleset("run") if not ended or each[0].id in _OF_ENDED_RUNS]
    yield from apply_all(rules, run, task, path=run.log.path)


@functools.cache
def _ruleset(scope: Scope) -> list[tuple[Rule, dict[str, Any]]]:
    table = tomllib.loads((Path(__file__).parent / "rulesets" / f"{RULESET}.toml").read_text())
    return of_scope(table["rules"], scope)
