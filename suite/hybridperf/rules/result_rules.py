"""Rules for all runs of one result together, of this suite or of a round of MLPerf."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, rule
from hybridperf.rules.verdict import most_windows_fail
from hybridperf.tasks.task import Task
from hybridperf.untrusted import COUNT_CAP, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result, SealedRun
    from hybridperf.rules.mlperf.ruleset import Benchmark

__all__ = ["completed"]


def completed(result: Result) -> list[SealedRun]:
    """Return the runs that the harness did not end."""
    return [run for run in result.runs if run.log.first(keys.ENDING) is None]


def _counted(result: Result, benchmark: Task | Benchmark) -> Sequence[SealedRun]:
    """Return the runs that make the result; a log of MLPerf cannot say that a harness ended it."""
    return completed(result) if isinstance(benchmark, Task) else result.runs


def _asked_runs(benchmark: Task | Benchmark) -> tuple[int | None, int]:
    """Return how many runs make a result, if known, and how many of them may miss the target."""
    if isinstance(benchmark, Task):
        return benchmark.runs.count, benchmark.runs.most_missed
    return benchmark.runs, benchmark.most_missed


@rule(
    "result.run_count",
    scope="result",
    source="MLPerf Training rules, section 12: a stated number of runs makes a result",
    remedy="repeat the command without --runs: it makes the missing runs",
)
@rule(
    "mlperf.runs",
    scope="result",
    source="MLPerf Training rules, Benchmark Results: 'Each benchmark result is based on a set of "
    "run results', with a table of their number; Scoring: it is allowed to run more, and 'to "
    "designate N consecutive runs from the group as the runs to be used for scoring'",
    remedy="submit as many runs as the benchmark asks for, one after another",
)
def run_count(
    result: Result, benchmark: Task | Benchmark, *, median_window: bool
) -> Iterator[Deviation]:
    """There are as many completed runs as a result takes.

    If more of them are scored by their ``median_window``, that is a warning.
    """
    count, (asked, _) = len(_counted(result, benchmark)), _asked_runs(benchmark)
    if asked is None:
        return
    if count < asked:
        yield Deviation(f"{asked} completed runs", str(count))
    elif count > asked and median_window:
        expected = f"{asked} runs, or a score from the window closest to the median"
        yield Deviation(expected, f"{count} runs", severity=Severity.WARNING)


@rule(
    "result.missed",
    scope="result",
    source="MLPerf Training rules, section 12: at most one run may miss the target",
    remedy="choose hyperparameters with which the task converges",
)
@rule(
    "mlperf.missed",
    scope="result",
    source="MLPerf Training rules, Benchmark Results: 'A benchmark result is invalid if there is "
    "more than one non-converging run'; Scoring: 'If the median set would be an invalid benchmark "
    "result, the entire result is invalid'",
    remedy="choose hyperparameters with which the benchmark converges",
)
def most_missed(
    result: Result, benchmark: Task | Benchmark, *, median_window: bool
) -> Iterator[Deviation]:
    """No more runs missed the target than a result may have.

    If more runs than it takes are scored by their ``median_window``, those of it count.
    """
    in_order = sorted(_counted(result, benchmark), key=_began)
    missed = [_missed(run.log, benchmark) for run in in_order]
    asked, most = _asked_runs(benchmark)
    window = asked if asked is not None and median_window else len(missed)
    if most_windows_fail(missed, window, most):
        numbers = [run.number for run, miss in zip(in_order, missed, strict=True) if miss]
        expected = f"at most {most} run{'s' if most != 1 else ''} without a success that reached "
        expected += "the target"
        if (windows := len(missed) - window + 1) > 1:
            expected += f" in the median of {windows} windows of {window} runs"
        named = ", ".join(map(str, sorted(numbers)[:10]))
        yield Deviation(expected, f"{len(numbers)}: {named}")


def _began(run: SealedRun) -> float:
    start = run.log.first(keys.RUN_START)
    return math.inf if start is None else start.time_ms


def _missed(log: Log, benchmark: Task | Benchmark) -> bool:
    stop = log.first(keys.RUN_STOP)
    if stop is None or stop.metadata.get("status") != "success":
        return True
    # That a run of a task reached the target where it says so is a rule of its own.
    if isinstance(benchmark, Task) or log.value(keys.SUBMISSION_DIVISION) == "open":
        return False
    return not any(benchmark.reached_by(each.value, log) for each in benchmark.evaluations(log))


@rule(
    "result.seeds",
    scope="result",
    source="MLPerf Training rules, section 5: every run draws its own seed",
    remedy="let the harness draw the seeds",
)
@rule(
    "mlperf.distinct_seeds",
    scope="result",
    source="MLPerf Training rules, Random numbers: generators 'must be seeded from' clock, system "
    "or another generator; Scoring: a submission is 'a set of N independent runs'",
    remedy="draw a new seed for every run",
)
def distinct_seeds(result: Result, benchmark: Task | Benchmark) -> Iterator[Deviation]:
    """No two completed runs share a seed, whichever line of code logs it."""
    first_with: dict[object, int] = {}
    for run in _counted(result, benchmark):
        for entry in run.log.all(keys.SEED):
            if entry.value is None:
                continue
            number = whole(entry.value)
            seed = repr(entry.value) if number is None else number
            if (other := first_with.setdefault(seed, run.number)) != run.number:
                found = f"{entry.value!r:.40}, as in run {other}"
                yield Deviation("a seed of its own", found, entry.line, run.number)
                break


@rule(
    "result.configuration",
    scope="result",
    source="MLPerf Training rules, section 12: all runs of a result are of one configuration",
    remedy="run all of them again with one configuration",
)
@rule(
    "mlperf.configuration",
    scope="result",
    source="MLPerf Training rules, General rules: 'The same system and framework must be used for "
    "a submission result set'; Definitions: a benchmark result is the mean of runs of one "
    "implementation; Hyperparameters: batch size and base learning rate are each an 'arbitrary "
    "constant'",
    remedy="make all runs of a result with one configuration",
)
def same_configuration(
    result: Result,
    benchmark: Task | Benchmark,
    *,
    same: Sequence[str],
    prefixes: Sequence[str],
    noted: Sequence[str],
    facts: Sequence[str],
) -> Iterator[Deviation]:
    """All completed runs have the configuration of most of them, and belong to one submission.

    By the keys that are the ``same`` or have one of the ``prefixes``, by those that are ``noted``,
    which is a warning, and by the ``facts`` of their manifests.
    """
    runs = _counted(result, benchmark)
    for key in sorted({key for run in runs for key in run.log.by_key}):
        if key in same or key in noted or key.startswith(tuple(prefixes)):
            last = [(run, here[-1]) for run in runs if (here := run.log.all(key))]
            stated = [(run, each.value, each.line) for run, each in last]
            yield from _differing(stated, key, Severity.WARNING if key in noted else None)
    for fact in facts:
        sealed = [run for run in runs if run.manifest is not None]
        yield from _differing([(run, run.fact(*fact.split(".")), None) for run in sealed], fact)


def _differing(
    stated: Sequence[tuple[SealedRun, object, int | None]],
    name: str,
    severity: Severity | None = None,
) -> Iterator[Deviation]:
    """Yield a deviation for each run that states another value of ``name`` than most do."""
    groups: list[tuple[object, list[tuple[SealedRun, int | None]]]] = []
    for run, value, line in stated:
        group = next((members for known, members in groups if known == value), None)
        if group is None:
            groups.append((value, [(run, line)]))
        else:
            group.append((run, line))
    if len(groups) < 2:
        return
    usual, most = max(groups, key=lambda group: len(group[1]))
    for value, members in groups:
        for run, line in members if members is not most else ():
            expected = f"{name} = {usual!r:.60}, as in {len(most)} of {len(stated)} runs"
            yield Deviation(expected, f"{value!r:.60}", line, run.number, severity=severity)


@rule(
    "result.attempts",
    scope="result",
    source="HybridPerf rules, section 3: attempts are numbered, and none is left out",
    remedy="publish every attempt, also those that failed",
)
def attempts_complete(result: Result, task: Task) -> Iterator[Deviation]:
    """Attempts are numbered from 0 without a gap."""
    due = 0
    for number in sorted(run.number for run in result.runs):
        if number > due:
            gap = f"attempt {due}" if number == due + 1 else f"attempts {due} to {number - 1}"
            yield Deviation(f"{gap}, as there is a later one", "none")
        due = number + 1


@rule(
    "result.ended",
    scope="result",
    source="HybridPerf rules, section 3: failed attempts stay and are counted",
    remedy="no action is needed: they are listed with the result",
    severity=Severity.WARNING,
)
def ended_attempts(result: Result, task: Task) -> Iterator[Deviation]:
    """Attempts that the harness ended are listed."""
    outcomes = Counter(
        str(run.fact("outcome")) for run in result.runs if run.log.first(keys.ENDING)
    )
    # Earlier harnesses did not seal an attempt that failed with the machine.
    if retries := sum(whole(run.fact("retries"), 0, COUNT_CAP) or 0 for run in result.runs):
        outcomes["of which no log was kept"] = retries
    if found := ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())):
        yield Deviation("attempts that end by themselves", found)


@rule(
    "result.place",
    scope="result",
    source="MLPerf submission rules: <org>/results/<system>/<benchmark>",
    remedy="move the result to the place that its logs name",
)
def place_matches(result: Result, task: Task) -> Iterator[Deviation]:
    """Folders have the names that the logs state."""
    package = result.package
    places = {
        keys.SUBMISSION_ORG: package.org,
        keys.SUBMISSION_PLATFORM: package.system,
        keys.SUBMISSION_BENCHMARK: package.benchmark,
    }
    for run in result.runs:
        for key, name in places.items():
            entry = run.log.first(key)
            if entry and str(entry.value).replace("/", "-") != name:
                expected = f"{key} {name}, as the folder is called"
                yield Deviation(expected, f"{entry.value!r:.80}", entry.line, run.number)


@rule(
    "result.system",
    scope="result",
    source="MLPerf submission rules: every system is described",
    remedy="restore the description that the harness wrote",
)
def system_described(result: Result, task: Task) -> Iterator[Deviation]:
    """The system's description exists and is the one that every run was made with."""
    if result.system is None:
        if not any(finding.rule == "system.file" for finding in result.findings):
            yield Deviation(f"{result.package.system_file.name} in systems/", "none")
        return
    for run in result.runs:
        if run.manifest is not None and run.fact("system", "sha256") != result.system_sha256:
            found = "a description other than the one the run was made with"
            yield Deviation("the system that the manifest names", found, run=run.number)
