"""Rules for MLPerf's clock: one ordered run that contains all training and evaluation."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.log_rules import ONE_CLOCK
from hybridperf.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.rules.mlperf.ruleset import Benchmark


@rule(
    "mlperf.clock",
    scope="log",
    source="MLPerf Training rules, Run Results: a run result is 'a wall-clock timing measurement "
    "for a contiguous period'",
    remedy=ONE_CLOCK,
)
def clock_runs_forward(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """Initialisation, start and stop have increasing time stamps."""
    order = (keys.INIT_START, keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP)
    present = [entry for entry in map(log.first, order) if entry is not None]
    for before, after in pairwise(present):
        if after.time_ms < before.time_ms:
            back_s = (before.time_ms - after.time_ms) / 1000
            expected = f"{after.key} after {before.key} by the clock"
            yield Deviation(expected, f"{back_s:g} s before it", after.line)


@rule(
    "mlperf.one_run",
    scope="log",
    source="MLPerf Training rules, Run Results: 'The clock may not be paused during the run'",
    remedy="log one run into one file",
)
def one_run(log: Log, benchmark: Benchmark) -> Iterator[Deviation]:
    """The clock starts once and stops once, also on lines without a value."""
    for key in (keys.RUN_START, keys.RUN_STOP):
        if len(here := log.all(key)) > 1:
            yield Deviation(f"{key} once", f"{len(here)} times", here[1].line)


@rule(
    "mlperf.timed",
    scope="log",
    source="MLPerf Training rules, Run Results: the period 'includes ... using the dataset to "
    "train the model, and quality evaluation'; 'the clock must start before any part of the system "
    "touches the dataset'",
    remedy="start the clock before training, and stop it after the evaluation that ends the run",
)
def training_is_timed(
    log: Log,
    benchmark: Benchmark,
    *,
    training: Sequence[str],
    evaluation: Sequence[str],
    evaluated_later: Sequence[str],
    most_apart_ms: int,
) -> Iterator[Deviation]:
    """Training begins and evaluations happen within the run, in the file and by the clock.

    A run may continue to train while its checkpoints are evaluated, so training may end late, and
    so may an evaluation that has no accuracy. Checkpoints of some benchmarks are evaluated later.
    """
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    for key in (*training, *evaluation):
        here = log.all(key)
        if start is not None:
            yield from _outside([e for e in here if e.line < start.line], "after run_start")
            earliest_ms = start.time_ms - most_apart_ms
            early = [e for e in here if e.line > start.line and e.time_ms < earliest_ms]
            yield from _outside(early, "after run_start by the clock")
        if stop is not None:
            mild = key != keys.EVAL_ACCURACY or benchmark.name in evaluated_later
            severity = Severity.WARNING if mild else Severity.ERROR
            after = [e for e in here if e.line > stop.line]
            yield from _outside(after, "before run_stop", severity)
            latest_ms = stop.time_ms + most_apart_ms
            late = [e for e in here if e.line < stop.line and e.time_ms > latest_ms]
            yield from _outside(late, "before run_stop by the clock", severity)


@rule(
    "mlperf.untimed",
    scope="log",
    source="MLPerf Training rules, Run Results: 'The clock must start ... when the maximum model "
    "initialization time is exceeded'",
    remedy="start the clock as soon as initialisation is done",
)
def clock_starts_in_time(
    log: Log, benchmark: Benchmark, *, most_minutes: Mapping[str, float], most_gap_s: float
) -> Iterator[Deviation]:
    """The clock starts within the limit of initialisation, and soon after initialisation ends.

    No rule states how soon: a gap within the limit is a warning.
    """
    begin, end, start = map(log.first, (keys.INIT_START, keys.INIT_STOP, keys.RUN_START))
    division = log.value(keys.SUBMISSION_DIVISION)
    limit = most_minutes.get(division) if isinstance(division, str) else None
    if begin and start and limit is not None:
        minutes = (start.time_ms - begin.time_ms) / 60_000
        if minutes > limit:
            expected = f"run_start within {limit:g} min of init_start"
            yield Deviation(expected, f"{minutes:.1f} min", start.line)
    if end and start and (gap_s := (start.time_ms - end.time_ms) / 1000) > most_gap_s:
        expected = f"run_start within {most_gap_s:g} s of init_stop"
        yield Deviation(expected, f"{gap_s:g} s", start.line, severity=Severity.WARNING)


@rule(
    "mlperf.milliseconds",
    scope="log",
    source="MLPerf logging (mllog): time_ms is the Unix time in milliseconds",
    remedy="log milliseconds since 1970, not seconds",
)
def times_are_in_milliseconds(
    log: Log, benchmark: Benchmark, *, earliest_ms: int, latest_ms: int
) -> Iterator[Deviation]:
    """Time stamps are of a year in which MLPerf existed."""
    start = log.first(keys.RUN_START)
    if start is not None and not earliest_ms <= start.time_ms <= latest_ms:
        expected = f"run_start with time_ms from {earliest_ms} to {latest_ms}"
        yield Deviation(expected, str(start.time_ms), start.line)


@rule(
    "mlperf.cache",
    scope="log",
    source="MLPerf Training rules, Data State at Start of Run: 'You must flush the cache or "
    "restart the system prior to benchmarking'",
    remedy="clear the caches just before init_start, and log cache_clear with the value true",
)
def caches_cleared(
    log: Log, benchmark: Benchmark, *, most_minutes_before: float
) -> Iterator[Deviation]:
    """Caches are cleared before the run; warn if during or long before initialisation."""
    clears = log.all(keys.CACHE_CLEAR)
    begin, start = log.first(keys.INIT_START), log.first(keys.RUN_START)
    for entry in clears:
        if entry.value is not True:
            unclear = entry.value is None or entry.value in ("True", "true")
            severity = Severity.WARNING if unclear else Severity.ERROR
            found = f"{entry.value!r:.40}"
            yield Deviation("cache_clear with the value true", found, entry.line, severity=severity)
            break
    for clear in clears:
        if start and clear.time_ms > start.time_ms:
            yield Deviation("cache_clear before run_start", "after it", clear.line)
            break
        if begin and clear.line > begin.line:  # another process may have written it earlier
            found, severity = "after it", Severity.WARNING
            yield Deviation("cache_clear before init_start", found, clear.line, severity=severity)
            break
    if clears and begin:
        minutes = (begin.time_ms - max(clear.time_ms for clear in clears)) / 60_000
        if minutes > most_minutes_before:
            expected = f"cache_clear at most {most_minutes_before:g} min before init_start"
            found, line = f"{minutes:.0f} min", clears[-1].line
            yield Deviation(expected, found, line, severity=Severity.WARNING)


def _outside(
    entries: list[Entry], expected: str, severity: Severity = Severity.ERROR
) -> Iterator[Deviation]:
    if entries:
        first = entries[0]
        times = f" on {len(entries)} lines" if len(entries) > 1 else ""
        yield Deviation(
            f"{first.key} {expected}", f"the opposite{times}", first.line, severity=severity
        )
