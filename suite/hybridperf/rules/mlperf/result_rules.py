"""Rules for all runs of one result of an MLPerf round together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.log.package import scaling_factor
from hybridperf.rules.mlperf.ruleset import division
from hybridperf.rules.rule import Deviation, rule
from hybridperf.untrusted import reason, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result, SealedRun
    from hybridperf.rules.mlperf.ruleset import Benchmark


@rule(
    "mlperf.runs",
    scope="mlperf.result",
    source="MLPerf Training rules, Benchmark Results: 'Each benchmark result is based on a set of "
    "run results', with a table of their number; Scoring: it is allowed to run more, and 'to "
    "designate N consecutive runs from the group as the runs to be used for scoring'",
    remedy="submit as many runs as the benchmark asks for, one after another",
)
def run_count(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """There are as many runs as the benchmark requires; more are scored by the median window."""
    count, asked = len(result.runs), benchmark.runs
    if asked is None:
        return
    if count < asked:
        yield Deviation(f"{asked} runs", str(count))
    elif count > asked:
        expected = f"{asked} runs, or a score from the window closest to the median"
        yield Deviation(expected, f"{count} runs", severity=Severity.WARNING)


@rule(
    "mlperf.missed",
    scope="mlperf.result",
    source="MLPerf Training rules, Benchmark Results: 'A benchmark result is invalid if there is "
    "more than one non-converging run'; Scoring: 'If the median set would be an invalid benchmark "
    "result, the entire result is invalid'",
    remedy="choose hyperparameters with which the benchmark converges",
)
def most_missed(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """No more runs missed the target than allowed, in the median window if there are more runs."""
    in_order = sorted(result.runs, key=_began)
    missed = [_missed(run.log, benchmark) for run in in_order]
    asked = benchmark.runs or len(missed)
    windows = max(1, len(missed) - asked + 1)
    invalid = sum(
        sum(missed[first : first + asked]) > benchmark.most_missed for first in range(windows)
    )
    if windows - invalid <= windows // 2:  # invalid windows are the slowest
        numbers = [run.number for run, miss in zip(in_order, missed, strict=True) if miss]
        most = benchmark.most_missed
        expected = f"at most {most} run{'s' if most != 1 else ''} without a success that reached "
        expected += "the target"
        within = f" in the median of {windows} windows of {asked} runs"
        named = ", ".join(map(str, sorted(numbers)[:10]))
        yield Deviation(expected + (within if windows > 1 else ""), f"{len(numbers)}: {named}")


@rule(
    "mlperf.configuration",
    scope="mlperf.result",
    source="MLPerf Training rules, General rules: 'The same system and framework must be used for "
    "a submission result set'; Definitions: a benchmark result is the mean of runs of one "
    "implementation; Hyperparameters: batch size and base learning rate are each an 'arbitrary "
    "constant'",
    remedy="make all runs of a result with one configuration",
)
def same_configuration(
    result: Result,
    benchmark: Benchmark,
    *,
    same: Sequence[str],
    prefixes: Sequence[str],
    noted: Sequence[str],
) -> Iterator[Deviation]:
    """All runs have the same hyperparameters and belong to one submission."""
    logged = sorted({key for run in result.runs for key in run.log.by_key})
    for key in logged:
        if key in same or key in noted or key.startswith(tuple(prefixes)):
            yield from _differing(result.runs, key, Severity.WARNING if key in noted else None)


@rule(
    "mlperf.distinct_seeds",
    scope="mlperf.result",
    source="MLPerf Training rules, Random numbers: generators 'must be seeded from' clock, system "
    "or another generator; Scoring: a submission is 'a set of N independent runs'",
    remedy="draw a new seed for every run",
)
def distinct_seeds(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """No two runs share a seed, whichever line of code logs it."""
    first_with: dict[int, int] = {}
    for run in result.runs:
        for entry in run.log.all(keys.SEED):
            if (seed := whole(entry.value)) is None:
                continue
            if (other := first_with.setdefault(seed, run.number)) != run.number:
                found = f"{seed}, as in run {other}"
                yield Deviation("a seed of its own", found, entry.line, run.number)
                break


@rule(
    "mlperf.copies",
    scope="mlperf.result",
    source="MLPerf Training rules, Scoring: each submission is 'a set of N independent runs'",
    remedy="submit every run once",
)
def no_copies(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """No two runs start and stop at the same millisecond."""
    first_at: dict[tuple[int, int], int] = {}
    for run in result.runs:
        start, stop = run.log.first(keys.RUN_START), run.log.first(keys.RUN_STOP)
        if start is not None and stop is not None:
            other = first_at.setdefault((start.time_ms, stop.time_ms), run.number)
            if other != run.number:
                found = f"start and stop of run {other}"
                yield Deviation("a run of its own", found, start.line, run.number)


@rule(
    "mlperf.scaling_file",
    scope="mlperf.result",
    source="MLPerf Training rules, RCPs: results that converge faster than the reference are "
    "normalized to it; MLPerf's package checker writes the factor to scaling.json",
    remedy="let MLPerf's package checker write scaling.json, or remove it",
)
def scaling_file_is_readable(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """A scaling.json beside the logs is a JSON object with a factor of at least 1."""
    try:
        scaling_factor(result.package)
    except (OSError, ValueError) as error:
        package = result.package
        place = package.name_of(package.folder / "scaling.json")
        yield Deviation("a scaling_factor of at least 1", reason(error), path=place)


def _began(run: SealedRun) -> float:
    start = run.log.first(keys.RUN_START)
    return math.inf if start is None else start.time_ms


def _missed(log: Log, benchmark: Benchmark) -> bool:
    stop = log.first(keys.RUN_STOP)
    reached = any(benchmark.reached_by(entry.value, log) for entry in benchmark.evaluations(log))
    completed = stop is not None and stop.metadata.get("status") == "success"
    return not completed or not (reached or division(log) == "open")


def _differing(
    runs: Sequence[SealedRun], key: str, severity: Severity | None
) -> Iterator[Deviation]:
    """Yield a deviation for each run whose last value of ``key`` differs from the majority."""
    groups: list[tuple[Any, list[SealedRun]]] = []
    for run in runs:
        if here := run.log.all(key):
            value = here[-1].value
            group = next((members for known, members in groups if known == value), None)
            if group is None:
                groups.append((value, [run]))
            else:
                group.append(run)
    if len(groups) < 2:
        return
    usual, most = max(groups, key=lambda group: len(group[1]))
    for value, members in groups:
        for run in members if members is not most else ():
            expected = f"{key} = {usual!r:.60}, as in {len(most)} of {len(runs)} runs"
            line = run.log.all(key)[-1].line
            yield Deviation(expected, f"{value!r:.60}", line, run.number, severity=severity)
