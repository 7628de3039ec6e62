"""Check an MLPerf round: its logs (mode ``as-published``) or all files (mode ``strict``)."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, Severity, visible
from hybridperf.log import keys
from hybridperf.log.published import read_published_log
from hybridperf.log.rounds import ROUND, find_packages, read_package
from hybridperf.log.submission import submissions_of
from hybridperf.parallel_map import parallel_map
from hybridperf.rules import layout_rules, package_rules, plausibility_rules, system_rules
from hybridperf.rules.check import RULESET, Verdict, nothing_to_check
from hybridperf.rules.mlperf import (
    clock_rules,
    evaluation_rules,
    form_rules,
    hyperparameter_rules,
    place_rules,
    result_rules,
)
from hybridperf.rules.mlperf.as_published import judge
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset
from hybridperf.rules.rule import apply_all, bounded, of_scope
from hybridperf.untrusted import exists

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.log.log import Log
    from hybridperf.log.package import Package, Result
    from hybridperf.rules.mlperf.ruleset import Benchmark, Ruleset

__all__ = [
    "Mode",
    "check_log_strictly",
    "check_published_result",
    "check_result_strictly",
    "check_round",
    "check_submissions",
    "choose_ruleset",
]

Mode = Literal["as-published", "strict"]


def check_round(path: Path, ruleset: str, mode: Mode, jobs: int = 1) -> Verdict:
    """Check the log ``path``, or every result in MLPerf's layout at or below the folder ``path``.

    Raises:
        UserError: exit status 4 if there is nothing to check.
    """
    if not exists(path) or not os.access(path, os.R_OK):
        raise nothing_to_check(path)
    rules = load_ruleset(ruleset)
    if path.is_file():
        log = read_published_log(path, visible(str(path)))
        alone = judge(log, rules) if mode == "as-published" else check_log_strictly(log, rules)
        return Verdict(str(path), (log.path,), tuple(alone), ruleset, mode)
    packages = find_packages(path)
    if not packages:
        raise nothing_to_check(path)
    names: list[str] = []

    def found() -> Iterator[Finding]:
        for logs, findings in parallel_map(
            partial(_check, ruleset=ruleset, mode=mode), packages, jobs
        ):
            names.extend(logs)
            yield from findings
        if mode == "strict":
            yield from check_submissions(packages, rules)

    findings = tuple(bounded(found(), visible(str(path))))
    return Verdict(str(path), tuple(names), findings, ruleset, mode)


def _check(package: Package, ruleset: str, mode: Mode) -> tuple[list[str], list[Finding]]:
    result = read_package(package)
    names = [run.log.path for run in result.runs]
    return names, check_published_result(result, load_ruleset(ruleset), mode)


def check_published_result(result: Result, rules: Ruleset, mode: Mode) -> list[Finding]:
    """Return the findings in a result; mode ``as-published`` checks its logs only."""
    found = (
        check_result_strictly(result, rules)
        if mode == "strict"
        else (finding for run in result.runs for finding in judge(run.log, rules))
    )
    return list(bounded(found, result.package.name))


_REGISTERED: Final = (  # imported to register their rules
    clock_rules,
    form_rules,
    evaluation_rules,
    hyperparameter_rules,
    place_rules,
    result_rules,
    package_rules,
    layout_rules,
    system_rules,
    plausibility_rules,
)


def check_log_strictly(log: Log, ruleset: Ruleset) -> Iterator[Finding]:
    """Yield the findings in one log in mode ``strict``."""
    for finding in judge(log, ruleset):
        # RFC 8259, section 4: parsers differ in their handling of duplicate keys.
        ambiguous = finding.rule == "mlperf.fields"
        yield replace(finding, severity=Severity.ERROR) if ambiguous else finding
    benchmark = _benchmark_of(log, ruleset)
    if benchmark is not None:
        rules = of_scope(ruleset.strict, "mlperf.log")
        yield from apply_all(rules, log, benchmark, path=log.path)


def check_result_strictly(result: Result, ruleset: Ruleset) -> Iterator[Finding]:
    """Yield the findings in a result in mode ``strict``: in each log and across all logs."""
    yield from result.findings
    for run in result.runs:
        yield from check_log_strictly(run.log, ruleset)
    # If the folder name is not a benchmark, use the first benchmark named in the logs.
    named = (_benchmark_of(run.log, ruleset) for run in result.runs)
    benchmark = ruleset.benchmarks.get(result.package.benchmark) or next(filter(None, named), None)
    if benchmark is not None:
        places = {run.number: run.log.path for run in result.runs}
        rules, name = of_scope(ruleset.strict, "mlperf.result"), result.package.name
        yield from apply_all(rules, result, benchmark, path=name, runs=places)


def check_submissions(packages: list[Package], ruleset: Ruleset) -> Iterator[Finding]:
    """Yield the findings in the submissions of ``packages`` in mode ``strict``, logs excluded."""
    for submission in submissions_of(packages):
        rules = of_scope(ruleset.strict, "submission")
        yield from apply_all(rules, submission, path=submission.org)


def _benchmark_of(log: Log, ruleset: Ruleset) -> Benchmark | None:
    name = log.value(keys.SUBMISSION_BENCHMARK)
    return ruleset.benchmarks.get(name) if isinstance(name, str) else None


def choose_ruleset(path: Path) -> str:
    """Return the ruleset of the round in or around ``path``, or else that of this suite.

    Raises:
        UserError: exit status 2 if there are several rounds, if the round has no ruleset, or if no
            folder names the round of MLPerf logs.
    """
    top = Path(os.path.realpath(path))  # tolerates symbolic link loops
    inside = [*top.parents, top]
    packages = find_packages(path) if path.is_dir() else []
    names = {folder.name for folder in inside} | {package.root.name for package in packages}
    rounds = {match[0]: match for match in map(ROUND.fullmatch, names) if match}
    if len(rounds) > 1:
        raise _refuse(path, "the logs of one round", " and ".join(sorted(rounds)))
    for name, match in rounds.items():
        ruleset = f"mlperf-training-{match[1]}.{match[2]}.0"
        if ruleset not in known_rulesets():
            raise _refuse(path, f"one of the rulesets {', '.join(known_rulesets())}", name)
        return ruleset
    if _is_of_mlperf(path, packages[0].folder if packages else None):
        found = "logs of MLPerf, and no folder training_results_v<round> around them"
        raise _refuse(path, "a ruleset", found)
    return RULESET


def _is_of_mlperf(path: Path, folder: Path | None) -> bool:
    if folder is not None and next(folder.glob("result_*.json"), None) is not None:
        return False
    log = path if path.is_file() else next(folder.glob("result_*.txt"), None) if folder else None
    if log is None:
        return False
    named = read_published_log(log, "").value(keys.SUBMISSION_BENCHMARK)
    return any(
        named in load_ruleset(ruleset).benchmarks
        for ruleset in known_rulesets()
        if ruleset != RULESET and isinstance(named, str)
    )


def _refuse(path: Path, expected: str, found: str) -> UserError:
    remedy = "name a ruleset with --ruleset, such as mlperf-training-2.1.0"
    return UserError(
        Finding("check.ruleset", expected, found, remedy, path=str(path)), ExitCode.USAGE
    )
