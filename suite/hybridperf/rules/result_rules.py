"""Rules for all runs of one result together, of this suite or of a round of MLPerf."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.findings import Finding, Severity
from hybridperf.log import keys
from hybridperf.plan import ParallelPlan
from hybridperf.projection.units import load_units
from hybridperf.rules.rule import READING, Deviation, rule
from hybridperf.rules.verdict import COPIES, DISPUTED, most_windows_fail
from hybridperf.score.convergence import count_key, samples_at
from hybridperf.system.catalog import (
    accelerator_count,
    accelerators_per_node,
    device_count,
    find_accelerator,
)
from hybridperf.tasks.registry import accepted_tensors, find_task, task_names
from hybridperf.tasks.task import Task
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hybridperf.log.log import Log
    from hybridperf.log.package import Package, Result, SealedRun
    from hybridperf.rules.mlperf.ruleset import Benchmark

__all__ = ["Trace", "completed", "copied_runs", "marks_of", "traces_of"]

_MODEL_FLOPS: Final = "HybridPerf rules, section 6: model FLOPs against the vendor's stated peak"
_CHECK_THE_CLOCK: Final = (
    "check the clock, the sample counts, and the accelerators that are described"
)
_BACKWARD: Final = 2  # FLOPs of a backward pass relative to a forward pass
# Of a run whose time stamps tell it from others: of a million pairs, fewer than one is equal.
_FEWEST_STAMPS: Final = 4
_SHORTEST_MS: Final = 1000


def completed(result: Result) -> list[SealedRun]:
    """Return the runs that the harness did not end."""
    return [
        run
        for run in result.runs
        if run.log.first(keys.RUN_STOP) is not None and run.log.first(keys.ENDING) is None
    ]


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
    remedy="give the command again, with --runs and the number of runs that the task asks for",
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
    result: Result, benchmark: Task | Benchmark, *, median_window: bool = True
) -> Iterator[Deviation]:
    """There are as many completed runs as a result takes.

    If more of them are scored by their ``median_window``, that is a warning.
    """
    count, (asked, _) = len(_counted(result, benchmark)), _asked_runs(benchmark)
    if asked is None:
        return
    if count < asked:
        missing = f"{asked - count} missing runs" if asked - count > 1 else "missing run"
        remedy = f"give the command again with --runs {asked}: it makes the {missing}"
        own = remedy if isinstance(benchmark, Task) else ""
        yield Deviation(f"{asked} completed runs", str(count), remedy=own)
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
    result: Result, benchmark: Task | Benchmark, *, median_window: bool = True
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
        runs_miss = "run that misses" if most == 1 else "runs that miss"
        expected = f"at most {most} {runs_miss} the target"
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
    facts: Sequence[str] = (),
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
    for attempt in sorted(run.number for run in result.runs):
        if attempt > due:
            gap = f"attempt {due}" if attempt == due + 1 else f"attempts {due} to {attempt - 1}"
            yield Deviation(f"{gap}, as there is a later one", "none")
        due = attempt + 1


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


@rule("plausible.throughput", scope="result", source=_MODEL_FLOPS, remedy=_CHECK_THE_CLOCK)
def below_the_peak(
    result: Result,
    benchmark: Benchmark,
    *,
    flops_per_sample: Mapping[str, float],
    formats: Sequence[str],
    warn_above: float,
) -> Iterator[Deviation]:
    """Closed runs are slower than the peak of the described accelerators, where it is known."""
    flops = flops_per_sample.get(benchmark.name)
    peak = _peak_flops(result, formats)
    if flops is None or peak is None:
        return
    key = count_key([run.log for run in result.runs], benchmark.name)
    for run in result.runs:
        evaluation = next(reversed(run.log.all(keys.EVAL_ACCURACY)), None)
        # The open division allows other models.
        if evaluation is None or run.log.value(keys.SUBMISSION_DIVISION) != "closed":
            continue
        samples = samples_at(run.log, benchmark.name, key, evaluation)
        yield from _above_the_peak(run.log, run.number, flops, samples, peak, warn_above)


@rule("result.plausible", scope="result", source=_MODEL_FLOPS, remedy=_CHECK_THE_CLOCK)
def own_below_the_peak(
    result: Result,
    task: Task,
    *,
    formats: Sequence[str],
    warn_above: float,
    core_flops_per_cycle: Mapping[str, float],
    core_hz: float,
) -> Iterator[Deviation]:
    """Runs take time, and are slower than the peak of the described devices, where it is known.

    The FLOPs of a sample are those of the suite's unit table. Without accelerators the peak is that
    of the cores: more than any processor's, by the precision of the plan. Then each block also has
    the processor time that its samples take at that peak, where the harness has measured it.
    """
    yield from _without_time(result)
    for run in result.runs:
        per_cycle = core_flops_per_cycle.get(_precision(run.log), core_flops_per_cycle["other"])
        peak = _peak_flops(result, formats) or _cores_peak(result, per_cycle * core_hz)
        forward = known_forward_flops(run, task)
        evaluation = next(reversed(run.log.all(keys.EVAL_ACCURACY)), None)
        if forward is None or evaluation is None:
            continue
        flops = forward * (1 + _BACKWARD)
        if peak is not None:
            key = count_key([run.log], task.name)
            samples = samples_at(run.log, task.name, key, evaluation)
            yield from _above_the_peak(run.log, run.number, flops, samples, peak, warn_above)
        if not accelerators_per_node(result.system or {}):
            yield from _steps_not_taken(run, flops, per_cycle * core_hz)


def _steps_not_taken(run: SealedRun, flops: float, core_peak: float) -> Iterator[Deviation]:
    """Yield a deviation for the first block with less processor time than its samples take."""
    processor_s = None
    for entry in run.log.entries:
        if entry.key == keys.TRACKED_STATS and isinstance(entry.value, dict):
            measured = number(entry.value.get("processor_s"), 0)
            processor_s = processor_s if measured is None else measured
        if entry.key != keys.BLOCK_STOP:
            continue
        samples = whole(entry.metadata.get("samples"), 0, COUNT_CAP) or 0
        if processor_s is not None and processor_s < (least_s := samples * flops / core_peak):
            expected = f"{least_s:.3g} s of processor time or more, for {samples} samples"
            yield Deviation(expected, f"{processor_s:.3g} s", entry.line, run.number)
            return
        processor_s = None


def known_forward_flops(run: SealedRun, task: Task) -> float | None:
    """Return the FLOPs of the forward pass on a sample, by the suite's own table of units.

    None if there is none of the task, or if an open run trained another model than the task's.
    """
    if task.name not in task_names() or find_task(task.name).sha256 != task.sha256:
        return None
    closed = run.log.value(keys.SUBMISSION_DIVISION) == "closed"
    if not closed and run.fact("model", "sha256") not in accepted_tensors(task):
        return None
    return load_units(task.name).forward_flops


def has_known_peak(result: Result) -> bool:
    """Tell whether the described devices have a peak by which time is bounded."""
    system = result.system or {}
    if accelerators_per_node(system):
        return find_accelerator(str(system.get("accelerator_model_name", ""))) is not None
    return bool(device_count(system))


def _without_time(result: Result) -> Iterator[Deviation]:
    """Yield a deviation for each closed run with a block, or a whole, that took no time."""
    for run in result.runs:
        if run.log.value(keys.SUBMISSION_DIVISION) != "closed":
            continue
        before = run.log.first(keys.RUN_START)
        ends = [*run.log.all(keys.EVAL_ACCURACY), *run.log.all(keys.RUN_STOP)[:1]]
        for nth, entry in enumerate(ends):
            last = nth == len(ends) - 1 and nth > 0  # the run stops as it is evaluated
            if before is not None and entry.time_ms <= before.time_ms and not last:
                expected = f"time between {before.key} and {entry.key}"
                yield Deviation(expected, "none", entry.line, run.number)
                break
            before = entry


def _precision(log: Log) -> str:
    """Return the precision of the run's plan; that of the default plan if it cannot be read."""
    text = log.value(keys.PLAN)
    try:
        return ParallelPlan.parse(text).precision if isinstance(text, str) else "fp32"
    except UserError:
        return "fp32"


def _cores_peak(result: Result, flops_per_core: float) -> tuple[float, str] | None:
    """Return a bound on FLOP/s of the described cores of all nodes, and their name."""
    system = result.system or {}
    if accelerators_per_node(system):
        return None
    cores = device_count(system)
    return (cores * flops_per_core, f"{cores} cores") if cores else None


def _above_the_peak(
    log: Log,
    number: int,
    flops_per_sample: float,
    samples: int | None,
    peak: tuple[float, str],
    warn_above: float,
) -> Iterator[Deviation]:
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    if start is None or stop is None or stop.time_ms <= start.time_ms or not samples:
        return
    rate = samples / ((stop.time_ms - start.time_ms) / 1000)
    share = rate * flops_per_sample / peak[0]
    if share > warn_above:
        above = share > 1
        most = "at most" if above else f"less than {warn_above:.0%} of"
        yield Deviation(
            f"{most} the {peak[0] / 1e12:,.0f} TFLOP/s that {peak[1]} can compute",
            f"{rate:,.0f} samples/s of {flops_per_sample / 1e9:,.3g} GFLOP, {share:.0%} of it",
            stop.line,
            number,
            severity=None if above else Severity.WARNING,
        )


def _peak_flops(result: Result, formats: Sequence[str]) -> tuple[float, str] | None:
    """Return the total peak FLOP/s in the fastest of ``formats``, and the accelerator name."""
    system = result.system or {}
    accelerator = find_accelerator(str(system.get("accelerator_model_name", "")))
    count = accelerator_count(system)
    if accelerator is None or not count:
        return None
    peaks = [accelerator.peak_tflops.get(name, 0.0) for name in formats]
    return count * max(peaks, default=0.0) * 1e12, f"{count} {accelerator.name}"


@dataclass(frozen=True, slots=True)
class Trace:
    """What tells a run from all others."""

    package: Package
    log: str  #: displayed path of the log
    right: tuple[bool, bool]  #: it lies where the log says, and its organisation has signed it
    marks: tuple[tuple[str, bytes], ...]  #: (what, digest of its value), each unique to the run


def marks_of(run: SealedRun) -> Iterator[tuple[str, object]]:
    """Yield (what, value) of everything that no two independent runs have in common."""
    measured = number(run.fact("supervisor", "run_s"))
    if measured is not None and measured != round(measured, 3):
        yield "a time by the supervisor's clock", measured
    start, evaluations = run.log.first(keys.RUN_START), run.log.all(keys.EVAL_ACCURACY)
    if start is not None and len(evaluations) >= _FEWEST_STAMPS:
        times = tuple(entry.time_ms - start.time_ms for entry in evaluations)
        if times[-1] >= _SHORTEST_MS:
            yield "times of its evaluations", times
    weights, ended = run.fact("weights_sha256"), run.log.first(keys.ENDING) is not None
    # A model of the open division may not depend on the seed.
    closed = run.log.value(keys.SUBMISSION_DIVISION) == "closed"
    if closed and not ended and isinstance(weights, dict) and weights:
        yield "final weights", tuple(sorted(map(str, weights.values())))


def traces_of(result: Result, *, signed: bool) -> list[Trace]:
    """Return the trace of each run of ``result``."""
    package, traces = result.package, []
    for run in result.runs:
        marks = [("a log", run.log.sha256)] if run.log.sha256 else []
        named = run.log.value(keys.SUBMISSION_ORG), run.log.value(keys.SUBMISSION_PLATFORM)
        traces.append(
            Trace(
                package,
                run.log.path,
                (named == (package.org, package.system), signed),
                tuple((what, _digest(value)) for what, value in (*marks, *marks_of(run))),
            )
        )
    return traces


def _digest(value: object) -> bytes:
    """Return a digest of a mark: the marks of all runs are kept until all results are read."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).digest()


def copied_runs(traces: Iterable[Trace]) -> Iterator[tuple[Package, Finding]]:
    """Yield the results whose runs stand in others too, with findings.

    The result that lies in the folder which its logs name is the original, and of several such ones
    the one that its organisation has signed. The others are copies. Originals of equal right are
    disputed: the finding is of the whole result.
    """
    by_mark: dict[tuple[str, bytes], list[Trace]] = defaultdict(list)
    for trace in traces:
        for mark in trace.marks:
            by_mark[mark].append(trace)
    found: set[tuple[Package, str]] = set()
    for (what, _), alike in by_mark.items():
        if len({trace.package for trace in alike}) == 1:
            continue
        best = max(trace.right for trace in alike)
        originals = {trace.package for trace in alike if trace.right == best and best[0]}
        first = max(alike, key=lambda trace: trace.right)
        others = [trace for trace in alike if trace.package != first.package]
        second = max(others, key=lambda trace: trace.right)
        for trace in alike:
            rule, place = COPIES, trace.log
            if trace.package in originals:
                if len(originals) == 1:
                    continue
                rule, place = DISPUTED, trace.package.name
            if (trace.package, place) in found:
                continue
            found.add((trace.package, place))
            other = second if trace.package == first.package else first
            expected, copied = f"{what} that no run of another result has", f"that of {other.log}"
            yield trace.package, Finding(rule, expected, copied, READING[rule].remedy, place)
