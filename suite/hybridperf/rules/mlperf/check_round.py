"""Check MLPerf rounds.

Mode ``as-published`` is the verdict of the round's log checker, ``package`` that of its package
checker, ``strict`` that of all rules.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.findings import UNREADABLE, Finding, Severity, visible
from hybridperf.log import keys
from hybridperf.log.package import find_packages, locked_files, published_runs, read_package
from hybridperf.log.reader import read_published_log
from hybridperf.log.submission import submissions_of
from hybridperf.parallel_map import parallel_map
from hybridperf.rules import layout_rules, package_rules, plausibility_rules, system_rules
from hybridperf.rules.check import nothing_to_check
from hybridperf.rules.mlperf import (
    clock_rules,
    duration_rules,
    evaluation_rules,
    form_rules,
    hyperparameter_rules,
    likeness_rules,
    package_checker_rules,
    place_rules,
    result_rules,
)
from hybridperf.rules.mlperf.as_published import judge
from hybridperf.rules.mlperf.package_checker_rules import Submitted
from hybridperf.rules.mlperf.ruleset import known_benchmarks, load_ruleset
from hybridperf.rules.reading import READING
from hybridperf.rules.rule import apply_all, bounded, of_scope
from hybridperf.rules.verdict import (
    LogVerdict,
    Outcome,
    ResultVerdict,
    Verdict,
    first_errors,
    log_verdict,
    result_verdict,
)
from hybridperf.untrusted import exists

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from hybridperf.log.log import Log
    from hybridperf.log.package import Package, Result, SealedRun
    from hybridperf.rules.mlperf.ruleset import Benchmark, Ruleset
    from hybridperf.rules.rule import Scope
    from hybridperf.score.rcp import RcpSets

__all__ = [
    "Mode",
    "check_log_strictly",
    "check_package",
    "check_packages",
    "check_result_strictly",
    "check_round",
    "check_submissions",
    "judge_result",
]

Mode = Literal["as-published", "package", "strict"]

_REGISTERED: Final = (  # imported to register their rules
    clock_rules,
    duration_rules,
    form_rules,
    evaluation_rules,
    hyperparameter_rules,
    likeness_rules,
    package_checker_rules,
    place_rules,
    result_rules,
    package_rules,
    layout_rules,
    system_rules,
    plausibility_rules,
)


def check_round(
    path: Path,
    ruleset: str | Path,
    mode: Mode,
    jobs: int = 1,
    references: RcpSets | None = None,
) -> Verdict:
    """Check the log ``path``, or every result in MLPerf's layout at or below the folder ``path``.

    ``ruleset`` is the name of a ruleset, or the file of one. Against ``references``, convergence is
    tested like the package checker does.

    Raises:
        UserError: exit status 4 if there is nothing to check.
    """
    if not exists(path) or not os.access(path, os.R_OK):
        raise nothing_to_check(path)
    if path.is_file():
        return _check_log(path, load_ruleset(ruleset), mode)
    barred: list[Finding] = []
    packages = find_packages(path, barred)
    if not packages and not barred:
        raise nothing_to_check(path)
    sources = [(each, ruleset) for each in packages]
    return check_packages(sources, mode, str(path), jobs, references, barred)


def check_packages(
    packages: Sequence[tuple[Package, str | Path]],
    mode: Mode,
    path: str,
    jobs: int = 1,
    references: RcpSets | None = None,
    barred: Iterable[Finding] = (),
) -> Verdict:
    """Check results, each by a ruleset of its own; ``path`` says what was checked.

    Every log is read once, and of few results at a time. ``barred`` are findings on folders that
    cannot be read.
    """
    results: list[ResultVerdict] = []

    def found() -> Iterator[Finding]:
        yield from barred
        check = partial(_check, mode=mode, references=references)
        for result, findings in parallel_map(check, packages, jobs):
            results.append(result)
            yield from findings
        if mode != "as-published":
            for source in dict.fromkeys(source for _, source in packages):
                judged = [
                    package
                    for (package, its), result in zip(packages, results, strict=True)
                    if its == source and result.outcome is not Outcome.NOT_JUDGED
                ]
                yield from check_submissions(judged, load_ruleset(source), mode)

    findings = tuple(bounded(found(), visible(path)))
    logs = tuple(log.path for result in results for log in result.logs)
    names = " and ".join(dict.fromkeys(result.ruleset for result in results))
    return Verdict(path, logs, findings, names, mode, tuple(results))


def _check_log(path: Path, ruleset: Ruleset, mode: Mode) -> Verdict:
    log = read_published_log(path, visible(str(path)))
    name = log.first(keys.SUBMISSION_BENCHMARK)
    value = None if name is None else name.value
    others = known_benchmarks() | {path.absolute().parent.name}
    if isinstance(value, str) and value in others and value not in ruleset.benchmarks:
        why = f"no rules for {value:.60}"
        alone = LogVerdict(log.path, Outcome.NOT_JUDGED, why)
        return Verdict(str(path), (log.path,), (), ruleset.name, mode, alone=(alone,))
    found = check_log_strictly(log, ruleset) if mode == "strict" else judge(log, ruleset)
    findings = tuple(found)
    alone = log_verdict(log.path, first_errors(findings).get(log.path))
    return Verdict(str(path), (log.path,), findings, ruleset.name, mode, alone=(alone,))


def _check(
    each: tuple[Package, str | Path], mode: Mode, references: RcpSets | None
) -> tuple[ResultVerdict, list[Finding]]:
    package, source = each
    ruleset = load_ruleset(source)
    if mode == "as-published":
        return judge_result(package, published_runs(package), ruleset)
    result = read_package(package)
    checker = list(check_package(result, ruleset, references))
    strictly = result if mode == "strict" else None
    return judge_result(package, result.runs, ruleset, strictly, checker)


def judge_result(
    package: Package,
    runs: Iterable[SealedRun],
    ruleset: Ruleset,
    strictly: Result | None = None,
    checker: Sequence[Finding] = (),
) -> tuple[ResultVerdict, list[Finding]]:
    """Return the verdict on the result of ``runs``, and the findings in it.

    Each run is used once and may be read as it is asked for. ``strictly`` is the whole result, for
    mode ``strict``; ``checker`` is what `check_package` found.
    """
    judged = _Judged(package, ruleset)
    for run in runs:
        here = [each for each in checker if each.path == run.log.path]
        judged.take(run, [] if strictly else [*judge(run.log, ruleset), *here])
    paths = {log.path for log in judged.logs}
    locked = list(locked_files(package, [path.rpartition("/")[2] for path in paths]))
    if not judged.known:
        locked += [each for each in judged.findings if each.rule == UNREADABLE]
        return judged.verdict([], locked, None), locked
    if strictly:
        found = [*check_result_strictly(strictly, ruleset), *checker]
    else:
        others = [each for each in checker if each.path not in paths]
        found = judged.findings = [*judged.findings, *locked, *others]
    benchmark = ruleset.benchmarks[judged.known]
    whole = [finding for finding in found if finding.path not in paths]
    verdict = judged.verdict(found, whole, (benchmark.runs, benchmark.most_missed))
    return verdict, list(bounded(found, package.name))


class _Judged:
    """What is known of a result's logs once they were read."""

    def __init__(self, package: Package, ruleset: Ruleset) -> None:
        self._package, self._ruleset = package, ruleset
        self.logs: list[LogVerdict] = []
        self.findings: list[Finding] = []
        self._division = ""
        self.known = package.benchmark if package.benchmark in ruleset.benchmarks else ""

    def take(self, run: SealedRun, findings: list[Finding]) -> None:
        log = run.log
        name, division = log.value(keys.SUBMISSION_BENCHMARK), log.value(keys.SUBMISSION_DIVISION)
        if not self.known and isinstance(name, str) and name in self._ruleset.benchmarks:
            self.known = name
        if not self._division and isinstance(division, str):
            self._division = visible(division)[:20]
        start = log.first(keys.RUN_START)
        began_ms = None if start is None else start.time_ms
        error = next((each for each in findings if each.severity is Severity.ERROR), None)
        self.logs.append(log_verdict(log.path, error, missed=True, began_ms=began_ms))
        self.findings += findings

    def verdict(
        self,
        findings: list[Finding],
        whole: list[Finding],
        runs: tuple[int | None, int] | None,
    ) -> ResultVerdict:
        """Return the verdict on the result; ``whole`` are findings that are in no single log."""
        logs = self.logs
        if runs is None:
            logs = [replace(log, outcome=Outcome.NOT_JUDGED, why="", rule="") for log in logs]
        elif findings is not self.findings:
            logs = [self._strictly(log, findings) for log in logs]
        package, name = self._package, self._ruleset.name
        return result_verdict(package, name, self._division, tuple(logs), whole, runs)

    def _strictly(self, log: LogVerdict, findings: list[Finding]) -> LogVerdict:
        errors = [
            each for each in findings if each.path == log.path and each.severity is Severity.ERROR
        ]
        # Errors that the checker of the round found make a run count as the slowest.
        beyond = [each for each in errors if each.rule not in READING]
        error = next(iter(beyond or errors), None)
        return log_verdict(log.path, error, missed=not beyond, began_ms=log.began_ms)


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
    yield from _of_result(result, result, ruleset, "mlperf.result")


def check_package(
    result: Result, ruleset: Ruleset, references: RcpSets | None
) -> Iterator[Finding]:
    """Yield what the package checker of the round finds in a result beyond its single logs."""
    yield from _of_result(Submitted(result, references), result, ruleset, "package.result")


def _of_result(
    subject: Result | Submitted, result: Result, ruleset: Ruleset, scope: Scope
) -> Iterator[Finding]:
    # If the folder name is not a benchmark, use the first benchmark named in the logs.
    named = (_benchmark_of(run.log, ruleset) for run in result.runs)
    benchmark = ruleset.benchmarks.get(result.package.benchmark) or next(filter(None, named), None)
    if benchmark is not None:
        places = {run.number: run.log.path for run in result.runs}
        rules, name = of_scope(ruleset.strict, scope), result.package.name
        yield from apply_all(rules, subject, benchmark, path=name, runs=places)


def check_submissions(
    packages: list[Package], ruleset: Ruleset, mode: Mode = "strict"
) -> Iterator[Finding]:
    """Yield the findings in the submissions of ``packages``, logs and results excluded."""
    checker = of_scope(ruleset.strict, "package.submission")
    rules = of_scope(ruleset.strict, "submission") if mode == "strict" else []
    for submission in submissions_of(packages):
        yield from apply_all(rules, submission, path=submission.org)
        yield from apply_all(checker, submission, ruleset, path=submission.org)


def _benchmark_of(log: Log, ruleset: Ruleset) -> Benchmark | None:
    name = log.value(keys.SUBMISSION_BENCHMARK)
    return ruleset.benchmarks.get(name) if isinstance(name, str) else None
