"""Check results and single logs against a ruleset."""

from __future__ import annotations

import dataclasses
import functools
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.evidence.trust import Trust
from hybridperf.findings import Finding, visible
from hybridperf.log import keys
from hybridperf.log.package import PUT_BACK, TASK_FILE, SealedRun, find_results, read_result
from hybridperf.log.reader import read_log
from hybridperf.log.submission import submissions_of
from hybridperf.parallel_map import parallel_map
from hybridperf.rules import (
    evidence_rules,
    layout_rules,
    log_rules,
    package_rules,
    plausibility_rules,
    provenance_rules,
    result_rules,
    run_rules,
    system_rules,
)
from hybridperf.rules.copies import copied_runs, traces_of
from hybridperf.rules.ladder import signature_of, trust_of
from hybridperf.rules.reading import unreadable_log
from hybridperf.rules.rule import apply_all, bounded, of_scope
from hybridperf.rules.verdict import (
    RULESET,
    ResultVerdict,
    Verdict,
    first_errors,
    log_verdict,
    result_verdict,
)
from hybridperf.tasks.registry import find_task, parse_task, task_names
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, exists, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.log.package import Package, Result
    from hybridperf.rules.copies import Trace
    from hybridperf.rules.rule import Rule, Scope
    from hybridperf.tasks.task import Task

__all__ = [
    "RULESET",
    "Judged",
    "Verdict",
    "check_path",
    "check_result",
    "check_results",
    "compared",
    "judge_result",
    "nothing_to_check",
]

_REGISTERED: Final = (  # imported to register their rules
    log_rules,
    run_rules,
    result_rules,
    package_rules,
    layout_rules,
    system_rules,
    plausibility_rules,
    provenance_rules,
    evidence_rules,
)
# Runs that the harness ended are not scored, so only their format is checked.
_OF_ENDED_RUNS: Final = frozenset(
    {"log.time", "log.intervals", "log.order", "log.chain", "run.date", "run.manifest", "run.task"}
)


def check_path(path: Path, jobs: int = 1) -> Verdict:
    """Check the log file ``path``, or every result at or below the folder ``path``.

    Raises:
        UserError: exit status 4 if there is nothing to check.
    """
    if not exists(path) or not os.access(path, os.R_OK):
        raise nothing_to_check(path)
    if path.is_file():
        run = SealedRun(0, read_log(path), None)
        beside = path.with_name(TASK_FILE)
        own, alone = _read_own_task(beside, visible(str(beside)), [run])
        alone += [
            finding
            for finding in _check_run(run, own)
            if not finding.rule.startswith("run.manifest")
        ]
        verdict = log_verdict(run.log.path, first_errors(alone).get(run.log.path))
        return Verdict(str(path), (run.log.path,), tuple(alone), RULESET, alone=(verdict,))
    barred: list[Finding] = []
    packages = find_results(path, barred) if path.is_dir() else []
    if not packages and not barred:
        raise nothing_to_check(path)
    return check_results(packages, str(path), jobs, barred)


def check_results(
    packages: Sequence[Package], path: str, jobs: int = 1, barred: Iterable[Finding] = ()
) -> Verdict:
    """Check results of this suite; ``path`` says what was checked.

    ``barred`` are findings on folders that cannot be read.
    """
    judged = compared(parallel_map(_judge_package, packages, jobs))

    def found() -> Iterator[Finding]:
        yield from barred
        for each in judged:
            yield from each.findings
        for submission in submissions_of(packages):
            yield from apply_all(_ruleset("submission"), submission, path=submission.org)

    findings = tuple(bounded(found(), visible(path)))
    logs = tuple(log for each in judged for log in each.logs)
    results = tuple(each.verdict for each in judged)
    return Verdict(path, logs, findings, RULESET, results=results)


@dataclass(frozen=True, slots=True)
class Judged:
    """One result: what was found in it, and the rung that it reaches."""

    package: Package
    logs: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    trust: Trust = field(default_factory=Trust)
    division: str = ""  #: as its logs state it
    traces: tuple[Trace, ...] = ()  #: of its runs, to find copies

    @property
    def verdict(self) -> ResultVerdict:
        """Return the verdict that follows from the findings."""
        wrong = first_errors(self.findings)
        logs = tuple(log_verdict(log, wrong.get(log)) for log in self.logs)
        whole = [each for each in self.findings if each.path not in self.logs]
        # How many runs there are and may miss the target is a rule of its own.
        verdict = result_verdict(self.package, RULESET, self.division, logs, whole, (None, 0))
        return dataclasses.replace(verdict, trust=self.trust)


def judge_result(result: Result) -> Judged:
    """Check ``result`` by itself, and find the rung that it reaches."""
    findings = tuple(check_result(result))
    own, _ = _own_task_of(result)
    trust = trust_of(result, _task_of_result(result, own), findings)
    signature = signature_of(result)
    signed = signature is not None and signature.good and signature.verified
    logs = tuple(run.log.path for run in result.runs)
    named = [run.log.value(keys.SUBMISSION_DIVISION) for run in result.runs]
    division = visible(next((each for each in named if isinstance(each, str)), ""))[:20]
    traces = tuple(traces_of(result, signed=signed))
    return Judged(result.package, logs, findings, trust, division, traces)


def compared(judged: Iterable[Judged]) -> list[Judged]:
    """Return ``judged`` with findings for runs that several of them have; those are not trusted."""
    every = list(judged)
    places = {each.package: nth for nth, each in enumerate(every)}
    traces = [trace for each in every for trace in each.traces]
    every = [dataclasses.replace(each, traces=()) for each in every]
    for package, finding in copied_runs(traces):
        nth = places[package]
        every[nth] = dataclasses.replace(
            every[nth],
            findings=(*every[nth].findings, finding),
            trust=Trust(lacks=f"log-verified takes no error by the rules: {finding.rule}"),
        )
    return every


def _judge_package(package: Package) -> Judged:
    return judge_result(read_result(package))


def nothing_to_check(path: Path) -> UserError:
    """Return the error for a ``path`` that is missing, unreadable or without logs."""
    found = "no such file or folder" if not exists(path) else "no results"
    remedy = "name a log, or the folder given to 'hybridperf run --out'"
    if exists(path) and not os.access(path, os.R_OK):
        found, remedy = "no permission to read it", "ask its owner for permission to read it"
    finding = Finding(
        "check.path",
        "a log, or a folder with <org>/results/<system>/<benchmark>/result_<n>.txt in it",
        found,
        remedy,
        path=str(path),
    )
    return UserError(finding, ExitCode.ENVIRONMENT)


def check_result(result: Result) -> list[Finding]:
    """Return the findings in ``result`` and each of its runs."""
    return list(bounded(_found_in_result(result), result.package.name))


def _found_in_result(result: Result) -> Iterator[Finding]:
    yield from result.findings
    own, wrong = _own_task_of(result)
    yield from wrong
    for run in result.runs:
        yield from _check_run(run, own)
    task = _task_of_result(result, own)
    if task is not None:
        places = {run.number: run.log.path for run in result.runs}
        rules = _ruleset("result")
        yield from apply_all(rules, result, task, path=result.package.name, runs=places)


def _own_task_of(result: Result) -> tuple[Task | None, list[Finding]]:
    package = result.package
    return _read_own_task(package.task_file, package.name_of(package.task_file), result.runs)


def _task_of_result(result: Result, own: Task | None) -> Task | None:
    """Return the task of the first run that names one."""
    return next(filter(None, (_task_of(run, own) for run in result.runs)), None)


def _check_run(run: SealedRun, own: Task | None) -> Iterator[Finding]:
    if unreadable := unreadable_log(run.log):
        yield from unreadable
        return
    yield from run.log.findings
    task = _task_of(run, own)
    if task is None:
        yield _unknown_task(run, own)
        return
    ended = run.log.first(keys.ENDING) is not None
    rules = [each for each in _ruleset("run") if not ended or each[0].id in _OF_ENDED_RUNS]
    yield from apply_all(rules, run, task, path=run.log.path)


@functools.cache
def _ruleset(scope: Scope) -> list[tuple[Rule, dict[str, Any]]]:
    table = tomllib.loads((Path(__file__).parent / "rulesets" / f"{RULESET}.toml").read_text())
    return of_scope(table["rules"], scope)


_RULE: Final = "result.task"


def _read_own_task(
    path: Path, name: str, runs: Iterable[SealedRun]
) -> tuple[Task | None, list[Finding]]:
    """Read the task file at ``path``, if any of ``runs`` is of a user-defined task.

    ``name`` is the displayed path. Returns the task, if any, and the findings in the file.
    """
    if all(_benchmark(run) in task_names() for run in runs):
        return None, []
    try:
        return parse_task(read_bounded(path, DOCUMENT_CAP_BYTES), name), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        expected = "the file of a task, which can be read"
        return None, [Finding(_RULE, expected, reason(error), PUT_BACK, name)]
    except UserError as refusal:
        if refusal.finding is None:
            raise
        return None, [dataclasses.replace(refusal.finding, rule=_RULE, remedy=PUT_BACK)]


def _task_of(run: SealedRun, own: Task | None) -> Task | None:
    """Return the task named in the log, from the suite or ``own``; None if it is neither."""
    name = _benchmark(run)
    if name in task_names():
        return find_task(str(name))
    return own if own is not None and own.name == name else None


def _unknown_task(run: SealedRun, own: Task | None) -> Finding:
    """Return the finding for a log that names no task of the suite and not ``own``."""
    name = _benchmark(run)
    expected = "submission_benchmark to name a task of this suite"
    remedy = "see 'hybridperf list'; logs of a round of MLPerf are checked with --ruleset"
    if own is not None:
        expected += f", or {own.name}, as task.toml beside the log"
    if run.log.first(keys.TASK) is not None:  # written by this harness only
        remedy = f"see 'hybridperf list', or for a user's own task {PUT_BACK}, task.toml"
    found = "none" if name is None else f"{name!r:.80}"
    return Finding("run.benchmark", expected, found, remedy, run.log.path)


def _benchmark(run: SealedRun) -> object:
    return run.log.value(keys.SUBMISSION_BENCHMARK)
