"""Rules for all runs of one result together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, rule
from hybridperf.untrusted import COUNT_CAP, whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.log.package import Result, SealedRun
    from hybridperf.tasks.task import Task


def _completed(result: Result) -> list[SealedRun]:
    """Return the runs that the harness did not end."""
    return [
        run
        for run in result.runs
        if run.log.first(keys.RUN_STOP) is not None and run.log.first(keys.ENDING) is None
    ]


@rule(
    "result.run_count",
    scope="result",
    source="MLPerf Training rules, section 12: a stated number of runs makes a result",
    remedy="repeat the command without --runs: it makes the missing runs",
)
def run_count(result: Result, task: Task) -> Iterator[Deviation]:
    """There are as many completed runs as the task requires."""
    if (count := len(_completed(result))) < task.runs.count:
        yield Deviation(f"{task.runs.count} completed runs", str(count))


@rule(
    "result.missed",
    scope="result",
    source="MLPerf Training rules, section 12: at most one run may miss the target",
    remedy="choose hyperparameters with which the task converges",
)
def most_missed(result: Result, task: Task) -> Iterator[Deviation]:
    """No more runs missed the target than the task allows."""
    statuses = [run.log.first(keys.RUN_STOP) for run in _completed(result)]
    missed = sum(1 for stop in statuses if stop and stop.metadata.get("status") != "success")
    if missed > task.runs.most_missed:
        yield Deviation(f"at most {task.runs.most_missed} run that misses the target", str(missed))


@rule(
    "result.seeds",
    scope="result",
    source="MLPerf Training rules, section 5: every run draws its own seed",
    remedy="let the harness draw the seeds",
)
def distinct_seeds(result: Result, task: Task) -> Iterator[Deviation]:
    """No two completed runs share a seed."""
    first: dict[object, int] = {}
    for run in _completed(result):
        seed = run.log.first(keys.SEED)
        if seed is None:
            continue
        if (value := repr(seed.value)) in first:
            expected = "a seed that no other run has"
            yield Deviation(expected, f"that of run {first[value]}", seed.line, run.number)
        first.setdefault(value, run.number)


@rule(
    "result.configuration",
    scope="result",
    source="MLPerf Training rules, section 12: all runs of a result are of one configuration",
    remedy="run all of them again with one configuration",
)
def same_configuration(result: Result, task: Task) -> Iterator[Deviation]:
    """Every run has the plan, hyperparameters, code, system and data of the first."""
    same_keys = (
        keys.SUBMISSION_BENCHMARK,
        keys.SUBMISSION_ORG,
        keys.SUBMISSION_DIVISION,
        keys.SUBMISSION_PLATFORM,
        keys.PLAN,
        keys.HYPERPARAMETERS,
        keys.GLOBAL_BATCH_SIZE,
    )
    runs = _completed(result)
    for run in runs[1:]:
        for key in same_keys:
            if run.log.value(key) != (value := runs[0].log.value(key)):
                found = f"{run.log.value(key)!r:.80}"
                yield Deviation(
                    f"{key} {value!r:.80}, as in run {runs[0].number}", found, run=run.number
                )
        if run.manifest is None or runs[0].manifest is None:  # reported by another rule
            continue
        for fact in ("suite_sha256", "trainer_sha256"):
            if run.fact("code", fact) != runs[0].fact("code", fact):
                yield Deviation(f"the {fact} of run {runs[0].number}", "another", run=run.number)
        for fact in ("data_sha256", "data_contents_sha256"):
            if run.fact(fact) != runs[0].fact(fact):
                yield Deviation(f"the data of run {runs[0].number}", "other data", run=run.number)


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
