"""Judge logs and results, by the ruleset of this suite or by that of a round of MLPerf.

Mode ``as-published`` gives the verdict of the round's log checker, ``package`` that of its package
checker, ``strict`` that of all rules; the ruleset of this suite has mode ``strict`` only.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import UNREADABLE, Finding, Severity, visible
from hybridperf.log import keys
from hybridperf.log.package import (
    PUT_BACK,
    TASK_FILE,
    SealedRun,
    locked_files,
    published_runs,
    read_package,
    read_result,
)
from hybridperf.log.reader import read_log, read_published_log
from hybridperf.log.submission import submissions_of
from hybridperf.parallel_map import parallel_map
from hybridperf.rules import (
    evidence_rules,
    package_rules,
    result_rules,
    run_rules,
)
from hybridperf.rules.evidence import Trust
from hybridperf.rules.levels import signature_of, trust_of
from hybridperf.rules.mlperf import log_rules as mlperf_log_rules
from hybridperf.rules.mlperf import result_rules as mlperf_result_rules
from hybridperf.rules.mlperf.as_published import check_as_published
from hybridperf.rules.mlperf.package_checker_rules import Submitted
from hybridperf.rules.mlperf.ruleset import known_benchmarks, known_rulesets, load_ruleset
from hybridperf.rules.result_rules import copied_runs, traces_of
from hybridperf.rules.rule import READING, apply_all, bounded, of_scope, unreadable_log
from hybridperf.rules.targets import find_targets
from hybridperf.rules.verdict import (
    RULESET,
    LogVerdict,
    Outcome,
    ResultVerdict,
    Verdict,
    log_verdict,
    result_verdict,
)
from hybridperf.rules.withdrawal import Withdrawal, read_withdrawals
from hybridperf.score.validity import Judgement
from hybridperf.tasks.registry import find_task, parse_task, task_names
from hybridperf.tasks.task import Task
from hybridperf.untrusted import DOCUMENT_CAP_BYTES, read_bounded, reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from hybridperf.log.log import Log
    from hybridperf.log.package import Package, Result
    from hybridperf.rules.mlperf.ruleset import Benchmark, Ruleset
    from hybridperf.rules.result_rules import Trace
    from hybridperf.rules.rule import Scope
    from hybridperf.rules.targets import Targets
    from hybridperf.score.rcp import RcpSets

__all__ = [
    "Judged",
    "Mode",
    "check_path",
    "check_paths",
    "check_result",
    "check_run",
    "check_submissions",
    "compared",
    "judge_logs",
    "judge_result",
]

Mode = Literal["as-published", "package", "strict"]

_REGISTERED: Final = (  # imported to register their rules
    run_rules,
    result_rules,
    package_rules,
    evidence_rules,
    mlperf_log_rules,
    mlperf_result_rules,
)
# Runs that the harness ended are not scored, so only their format is checked.
_OF_ENDED_RUNS: Final = frozenset(
    {"log.time", "log.intervals", "log.order", "log.chain", "run.date", "run.manifest", "run.task"}
)


def check_paths(
    paths: Sequence[Path],
    ruleset: str | Path | None = None,
    mode: Mode | None = None,
    jobs: int = 1,
    references: RcpSets | None = None,
) -> tuple[Verdict, list[str]]:
    """Check logs and results at or below ``paths``; return the verdict, and warnings.

    Without ``ruleset``, a result is judged by that of the round whose folder it is in. Modes
    ``package`` and ``strict`` test convergence against ``references``, where they are given.

    Raises:
        UserError: as `find_targets`; exit status 2 if the ruleset has no rules for anything there.
    """
    targets = find_targets(paths, ruleset)
    if mode == "package":
        _refuse_parts(targets, references)
    verdict = _check_targets(targets, mode, jobs, references)
    if not verdict.judged and not verdict.unreadable:
        raise _does_not_fit(verdict)
    warnings = list(targets.warnings())
    if mode == "strict" and references is None and targets.tests_convergence:
        warnings.append("convergence was not tested; name the reference points with --rcp-set")
    return verdict, warnings


def check_path(
    path: Path,
    ruleset: str | Path = RULESET,
    mode: Mode | None = None,
    jobs: int = 1,
    references: RcpSets | None = None,
) -> Verdict:
    """Check the log ``path``, or every result at or below the folder ``path``, by one ruleset.

    Raises:
        UserError: as `find_targets`.
    """
    return _check_targets(find_targets([path], ruleset), mode, jobs, references)


def _refuse_parts(targets: Targets, references: RcpSets | None) -> None:
    """Refuse what mode ``package`` cannot judge whole.

    Raises:
        UserError: exit status 2.
    """
    if targets.logs:
        reason = "expected folders of results with --mode package, found the log "
        reason += f"{visible(str(targets.logs[0][0]))}; name the folder that it is in"
    elif references is None and targets.tests_convergence:
        reason = "expected the reference convergence points of the round with --mode package, "
        reason += "found none; name their folder with --rcp-set"
    else:
        return
    raise UserError(f"{reason}.", ExitCode.USAGE)


def _does_not_fit(verdict: Verdict) -> UserError:
    unknown = sorted({result.package.benchmark for result in verdict.results})
    found = ", ".join(unknown[:5]) or next((log.why for log in verdict.all_logs), "")
    known = known_rulesets()
    benchmarks = load_ruleset(verdict.ruleset).benchmarks if verdict.ruleset in known else ()
    expected = f"results that {verdict.ruleset} has rules for: {', '.join(sorted(benchmarks))}"
    others = [name for name in known if set(unknown) & set(load_ruleset(name).benchmarks)]
    remedy = f"choose {' or '.join(others[-3:])}" if others else "no ruleset has rules for them"
    finding = Finding("check.ruleset", expected, found, remedy, path=verdict.path)
    return UserError(finding, ExitCode.USAGE)


def _check_targets(
    targets: Targets, mode: Mode | None, jobs: int, references: RcpSets | None
) -> Verdict:
    """Judge ``targets``; every log is read once, and of few results at a time."""
    alone, results = list[LogVerdict](), list[ResultVerdict]()
    sources = dict.fromkeys(source for _, source in [*targets.logs, *targets.packages])
    modes = {source: _mode_of(source, mode) for source in sources or [RULESET]}

    def found() -> Iterator[Finding]:
        yield from targets.barred
        for path, source in targets.logs:
            verdict, findings = _check_log(path, load_ruleset(source), modes[source])
            alone.append(verdict)
            yield from findings
        for judged in _judge_packages(targets, modes, jobs, references):
            results.append(judged.verdict)
            yield from judged.findings
        for source, how in modes.items():
            judged_by = [
                package
                for (package, its), result in zip(targets.packages, results, strict=True)
                if its == source
                and (source == RULESET or result.judgement is not Judgement.NOT_JUDGED)
                and not result.withdrawn
            ]
            yield from check_submissions(judged_by, load_ruleset(source), how)

    findings = tuple(bounded(found(), visible(targets.name)))
    return Verdict(
        targets.name,
        tuple(log.path for log in (*alone, *(log for each in results for log in each.logs))),
        findings,
        " and ".join(dict.fromkeys(load_ruleset(source).name for source in modes)),
        " and ".join(dict.fromkeys(modes.values())),
        tuple(results),
        tuple(alone),
    )


def _mode_of(ruleset: str | Path, mode: Mode | None) -> Mode:
    return "strict" if ruleset == RULESET else mode or "as-published"


def _judge_packages(
    targets: Targets, modes: dict[str | Path, Mode], jobs: int, references: RcpSets | None
) -> Iterator[Judged]:
    judge = partial(_judge_package, modes=modes, references=references)
    ours = [each for each in targets.packages if each[1] == RULESET]
    yield from compared(parallel_map(judge, ours, jobs))
    yield from parallel_map(judge, targets.packages[len(ours) :], jobs)


def _judge_package(
    each: tuple[Package, str | Path], modes: dict[str | Path, Mode], references: RcpSets | None
) -> Judged:
    package, ruleset = each
    if modes[ruleset] == "as-published":
        return judge_logs(package, published_runs(package), ruleset)
    result = read_result(package) if ruleset == RULESET else read_package(package)
    return judge_result(result, ruleset, modes[ruleset], references)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a result, with the findings in it and the traces of its runs."""

    verdict: ResultVerdict
    findings: tuple[Finding, ...] = ()
    traces: tuple[Trace, ...] = ()  #: to find copies of the runs of this suite

    @property
    def trust(self) -> Trust:
        """Return the verification level of the result."""
        return self.verdict.trust


def judge_result(
    result: Result,
    ruleset: str | Path = RULESET,
    mode: Mode = "strict",
    references: RcpSets | None = None,
) -> Judged:
    """Judge ``result`` by itself, without comparing its runs with those of other results."""
    rules = load_ruleset(ruleset)
    if mode == "as-published":
        return judge_logs(result.package, result.runs, ruleset)
    submitted = Submitted(result, references)
    checker = list(_of_result(submitted, result, rules, "package.result"))
    if mode == "package":
        return judge_logs(result.package, result.runs, ruleset, checker)
    logs = _Logs(rules)
    for run in result.runs:
        logs.take(run.log)
    findings = [*check_result(result, ruleset), *checker]
    # Errors that the checker of the round finds too make a run count as the slowest.
    judged = logs.judged(result.package, findings, READING.__contains__)
    if ruleset != RULESET:
        return judged
    own, _ = _own_task_of(result)
    tasks = (_task_of(run.log, own) for run in result.runs)
    trust = trust_of(result, next(filter(None, tasks), None), findings)
    signature = signature_of(result)
    signed = signature is not None and signature.good and signature.verified
    traces = tuple(traces_of(result, signed=signed))
    return replace(judged, verdict=replace(judged.verdict, trust=trust), traces=traces)


def judge_logs(
    package: Package,
    runs: Iterable[SealedRun],
    ruleset: str | Path,
    checker: Sequence[Finding] = (),
) -> Judged:
    """Judge the result of ``runs`` like the log checker of a round of MLPerf.

    Each run is used once, so that it may be read as it is asked for. ``checker`` is what the
    package checker finds too.
    """
    rules = load_ruleset(ruleset)
    logs, findings = _Logs(rules), list[Finding]()
    for run in runs:
        logs.take(run.log)
        findings += check_as_published(run.log, rules)
    names = [log.path.rpartition("/")[2] for log in logs.verdicts]
    findings += [*locked_files(package, names), *checker]
    return logs.judged(package, findings, lambda _: True)


class _Logs:
    """What a verdict takes from the logs of a result, each of which may be forgotten then."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset
        self._division, self._named = "", ""
        self.verdicts: list[LogVerdict] = []  #: without what the findings say

    def take(self, log: Log) -> None:
        name, division = log.value(keys.SUBMISSION_BENCHMARK), log.value(keys.SUBMISSION_DIVISION)
        if not self._named and isinstance(name, str) and name in self._ruleset.benchmarks:
            self._named = name
        if not self._division and isinstance(division, str):
            self._division = visible(division)[:20]
        start = log.first(keys.RUN_START)
        began_ms = None if start is None else start.time_ms
        self.verdicts.append(LogVerdict(log.path, Outcome.VALID, began_ms=began_ms))

    def judged(
        self,
        package: Package,
        findings: list[Finding],
        counts_as_slowest: Callable[[str], bool],
    ) -> Judged:
        """Judge the result by the ``findings`` in it."""
        ruleset = self._ruleset
        benchmark = ruleset.benchmarks.get(package.benchmark) or ruleset.benchmarks.get(self._named)
        runs: tuple[int | None, int] | None = None
        if ruleset.name == RULESET:  # how many runs there are and may miss it is a rule of its own
            runs, counts_as_slowest = (None, 0), lambda _: False
        elif benchmark is not None:
            runs = (benchmark.runs, benchmark.most_missed)
        else:
            findings = [each for each in findings if each.rule == UNREADABLE]
        verdict = result_verdict(
            package, ruleset.name, self._division, self.verdicts, findings, runs, counts_as_slowest
        )
        return Judged(verdict, tuple(bounded(findings, package.name)))


def compared(judged: Iterable[Judged]) -> list[Judged]:
    """Mark withdrawn results, and those that share a run with another result.

    Raises:
        UserError: as `read_withdrawals`.
    """
    withdrawals = functools.cache(read_withdrawals)
    every = []
    for each in judged:
        package = each.verdict.package
        withdrawal = withdrawals(package.root).get(package.folder)
        every.append(each if withdrawal is None else _withdrawn(each, withdrawal))
    places = {each.verdict.package: nth for nth, each in enumerate(every)}
    traces = [trace for each in every for trace in each.traces]
    every = [replace(each, traces=()) for each in every]
    for package, finding in copied_runs(traces):
        before = every[places[package]]
        old, findings = before.verdict, (*before.findings, finding)
        again = result_verdict(package, RULESET, old.division, old.logs, findings, (None, 0))
        trust = Trust(lacks=f"log-verified requires no error by the rules: {finding.rule}")
        every[places[package]] = Judged(replace(again, trust=trust), findings)
    return every


def _withdrawn(judged: Judged, withdrawal: Withdrawal) -> Judged:
    """Return the judgement on a withdrawn result, which no rule is asked about.

    The runs of a superseded result are still its own; those of a withdrawn one may be a copy.
    """
    judgement, why = withdrawal.judgement, withdrawal.words
    verdict = replace(judged.verdict, judgement=judgement, why=why, trust=Trust())
    traces = judged.traces if judgement is Judgement.SUPERSEDED else ()
    return Judged(verdict, (), traces)


def check_result(result: Result, ruleset: str | Path = RULESET) -> list[Finding]:
    """Return the findings in ``result`` and each of its runs, by all rules of ``ruleset``."""
    rules = load_ruleset(ruleset)
    own, wrong = _own_task_of(result) if rules.name == RULESET else (None, [])
    findings = [*result.findings, *wrong]
    for run in result.runs:
        findings += check_run(run, rules, own)
    return [*findings, *_of_result(result, result, rules, "result", own)]


def check_run(run: SealedRun, ruleset: Ruleset, own: Task | None = None) -> Iterator[Finding]:
    """Yield the findings in one run by all rules; ``own`` is a task beside its log."""
    for finding in check_as_published(run.log, ruleset):
        # RFC 8259, section 4: parsers differ in their handling of duplicate keys.
        ambiguous = finding.rule == "mlperf.fields"
        yield replace(finding, severity=Severity.ERROR) if ambiguous else finding
    if unreadable_log(run.log):
        return
    benchmark = _benchmark_of(run.log, ruleset, own)
    if benchmark is None:
        if ruleset.name == RULESET:
            yield _unknown_task(run.log, own)
        return
    ended = isinstance(benchmark, Task) and run.log.first(keys.ENDING) is not None
    subjects: dict[Scope, Log | SealedRun] = {"log": run.log, "run": run}
    for scope, subject in subjects.items():
        rules = of_scope(ruleset.rules, scope)
        asked = [each for each in rules if not ended or each[0].id in _OF_ENDED_RUNS]
        yield from apply_all(asked, subject, benchmark, path=run.log.path)


def _of_result(
    subject: Result | Submitted,
    result: Result,
    ruleset: Ruleset,
    scope: Scope,
    own: Task | None = None,
) -> Iterator[Finding]:
    benchmark = _benchmark_of_result(result, ruleset, own)
    if benchmark is not None:
        places = {run.number: run.log.path for run in result.runs}
        rules, name = of_scope(ruleset.rules, scope), result.package.name
        yield from apply_all(rules, subject, benchmark, path=name, runs=places)


def check_submissions(
    packages: Sequence[Package], ruleset: Ruleset, mode: Mode = "strict"
) -> Iterator[Finding]:
    """Yield the findings in the submissions of ``packages``, logs and results excluded."""
    if mode == "as-published":
        return
    checker = of_scope(ruleset.rules, "package.submission")
    rules = of_scope(ruleset.rules, "submission") if mode == "strict" else []
    for submission in submissions_of(packages):
        yield from apply_all(rules, submission, path=submission.org)
        yield from apply_all(checker, submission, ruleset, path=submission.org)


def _check_log(path: Path, ruleset: Ruleset, mode: Mode) -> tuple[LogVerdict, list[Finding]]:
    """Check a log by itself, which needs no manifest."""
    if ruleset.name == RULESET:
        run = SealedRun(0, read_log(path), None)
        beside = path.with_name(TASK_FILE)
        own, findings = _read_own_task(beside, visible(str(beside)), [run])
        found = check_run(run, ruleset, own)
        findings += [each for each in found if not each.rule.startswith("run.manifest")]
    else:
        run = SealedRun(0, read_published_log(path, visible(str(path))), None)
        stated = run.log.first(keys.SUBMISSION_BENCHMARK)
        name = None if stated is None else stated.value
        others = known_benchmarks() | {path.absolute().parent.name}
        if isinstance(name, str) and name in others and name not in ruleset.benchmarks:
            why = f"no rules for {name:.60}"
            return LogVerdict(run.log.path, Outcome.NOT_JUDGED, why), []
        strict = mode == "strict"
        findings = list(check_run(run, ruleset) if strict else check_as_published(run.log, ruleset))
    place = run.log.path
    errors = (each for each in findings if each.severity is Severity.ERROR and each.path == place)
    return log_verdict(place, next(errors, None)), findings


def _benchmark_of(log: Log, ruleset: Ruleset, own: Task | None) -> Task | Benchmark | None:
    """Return the task or the benchmark of MLPerf that a log names; None if ``ruleset`` has none."""
    if ruleset.name == RULESET:
        return _task_of(log, own)
    name = log.value(keys.SUBMISSION_BENCHMARK)
    return ruleset.benchmarks.get(name) if isinstance(name, str) else None


def _task_of(log: Log, own: Task | None) -> Task | None:
    """Return the task that a log names, from the suite or ``own``; None if it is neither."""
    name = log.value(keys.SUBMISSION_BENCHMARK)
    if name in task_names():
        return find_task(str(name))
    return own if own is not None and own.name == name else None


def _benchmark_of_result(
    result: Result, ruleset: Ruleset, own: Task | None
) -> Task | Benchmark | None:
    """Return the benchmark that the folder names, or else that of the first log with one."""
    if (benchmark := ruleset.benchmarks.get(result.package.benchmark)) is not None:
        return benchmark
    named = (_benchmark_of(run.log, ruleset, own) for run in result.runs)
    return next((each for each in named if each is not None), None)


_RULE: Final = "result.task"


def _own_task_of(result: Result) -> tuple[Task | None, list[Finding]]:
    package = result.package
    return _read_own_task(package.task_file, package.name_of(package.task_file), result.runs)


def _read_own_task(
    path: Path, name: str, runs: Iterable[SealedRun]
) -> tuple[Task | None, list[Finding]]:
    """Read the task file at ``path``, if any of ``runs`` is of a user-defined task.

    ``name`` is the displayed path. Returns the task, if any, and the findings in the file.
    """
    if all(run.log.value(keys.SUBMISSION_BENCHMARK) in task_names() for run in runs):
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
        return None, [replace(refusal.finding, rule=_RULE, remedy=PUT_BACK)]


def _unknown_task(log: Log, own: Task | None) -> Finding:
    """Return the finding for a log that names no task of the suite and not ``own``."""
    name = log.value(keys.SUBMISSION_BENCHMARK)
    expected = "submission_benchmark to name a task of this suite"
    remedy = "see 'hybridperf list'; logs of a round of MLPerf are checked with --ruleset"
    if own is not None:
        expected += f", or {own.name}, as task.toml beside the log"
    if log.first(keys.TASK) is not None:  # written by this harness only
        remedy = f"see 'hybridperf list', or for a user's own task {PUT_BACK}, task.toml"
    found = "none" if name is None else f"{name!r:.80}"
    return Finding("run.benchmark", expected, found, remedy, log.path)
