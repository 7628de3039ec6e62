"""Rules for how long parts of a run take: evaluations, its halves, and what it tracked itself."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.mlperf.ruleset import division
from hybridperf.rules.rule import Deviation, rule
from hybridperf.score.convergence import count_key, samples_of
from hybridperf.untrusted import COUNT_CAP, number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.log.package import Result
    from hybridperf.rules.mlperf.ruleset import Benchmark

_PERIOD: Final = (
    "MLPerf Training rules, Run Results: a run result is 'a wall-clock timing measurement for a "
    "contiguous period that includes ... quality evaluation'"
)
_MOST_TRACKED: Final = 500  #: lines of statistics that are looked at; logs have up to 1,352
_WHOLE: Final = "submit the log of one run on one system, as it was written"


@rule("mlperf.evaluation_time", scope="mlperf.log", source=_PERIOD, remedy=_WHOLE)
def evaluations_take_time(
    log: Log,
    benchmark: Benchmark,
    *,
    least_share: Mapping[str, float],
    least_ms: float,
    evaluated_later: Sequence[str],
) -> Iterator[Deviation]:
    """Every evaluation takes time, and a share of what the run's others take in the median.

    Shares below those of ``least_share`` are an error or a warning; a warning too where the median
    is below ``least_ms``, as some log what a device did in a few milliseconds at once, and in the
    open division. Benchmarks whose checkpoints are evaluated later may log all of it at once.
    """
    spans = () if benchmark.name in evaluated_later else _spans(log)
    if not spans:
        return
    usual = median(span for span, _ in spans)
    shortest, line = min(spans)
    if shortest > 0 and shortest >= least_share["warning"] * usual:
        return
    mild = shortest >= least_share["error"] * usual or usual < least_ms or division(log) == "open"
    yield Deviation(
        f"evaluations of about {usual / 1000:g} s, as the run's others are",
        f"{shortest / 1000:g} s",
        line,
        severity=Severity.WARNING if mild else None,
    )


@rule("mlperf.evaluation_speed", scope="mlperf.result", source=_PERIOD, remedy=_WHOLE)
def evaluations_take_as_long(
    result: Result,
    benchmark: Benchmark,
    *,
    least_runs: int,
    least_share: Mapping[str, float],
    least_ms: float,
    evaluated_later: Sequence[str],
) -> Iterator[Deviation]:
    """Evaluations of a run take a share of what those of the result's other runs take.

    Results of fewer than ``least_runs`` runs that log evaluations are not compared. Where they
    take less than ``least_ms`` it is a warning, as in the open division.
    """
    if benchmark.name in evaluated_later:
        return
    of_runs = [(run, spans) for run in result.runs if (spans := _spans(run.log))]
    if len(of_runs) < least_runs:
        return
    usual = median(median(span for span, _ in spans) for _, spans in of_runs)
    for run, spans in of_runs:
        own = median(span for span, _ in spans)
        if own < least_share["warning"] * usual:
            mild = own >= least_share["error"] * usual or usual < least_ms
            yield Deviation(
                f"evaluations of about {usual / 1000:g} s, as in the other runs",
                f"{own / 1000:g} s in the median",
                spans[0][1],
                run.number,
                severity=Severity.WARNING if mild or division(run.log) == "open" else None,
            )


def _spans(log: Log) -> list[tuple[int, int]]:
    """Return the time of each evaluation and the line it stops in, if starts and stops pair."""
    starts, stops = log.all(keys.EVAL_START), log.all(keys.EVAL_STOP)
    if len(starts) != len(stops):
        return []
    return [
        (stop.time_ms - start.time_ms, stop.line) for start, stop in zip(starts, stops, strict=True)
    ]


@rule("mlperf.training_time", scope="mlperf.log", source=_PERIOD, remedy=_WHOLE)
def training_takes_time(
    log: Log,
    benchmark: Benchmark,
    *,
    least: int,
    least_share: Mapping[str, float],
    evaluated_later: Sequence[str],
) -> Iterator[Deviation]:
    """What is trained between two evaluations takes a share of what as much takes in the median.

    Runs of fewer than ``least`` intervals are not looked at. In the open division, where the model
    may change on the way, it is a warning.
    """
    if benchmark.name in evaluated_later:
        return
    by = count_key([log], benchmark.name, benchmark.edition)
    first: dict[float, Entry] = {}
    for entry in benchmark.evaluations(log):
        if (point := number(entry.metadata.get(by), 0, COUNT_CAP)) is not None:
            first.setdefault(float(point), entry)
    paces = [
        ((first[after].time_ms - first[before].time_ms) / (after - before), first[after])
        for before, after in pairwise(sorted(first))
    ]
    if len(paces) < least:
        return
    usual = median(pace for pace, _ in paces)
    shortest, entry = min(paces, key=lambda each: each[0])
    if shortest < least_share["warning"] * usual:
        mild = shortest >= least_share["error"] * usual or division(log) == "open"
        yield Deviation(
            "as much training in about as much time as between the run's other evaluations",
            f"{shortest / usual:.1%} of it",
            entry.line,
            severity=Severity.WARNING if mild else None,
        )


@rule("mlperf.rates", scope="mlperf.log", source=_PERIOD, remedy=_WHOLE)
def rates_agree(
    log: Log,
    benchmark: Benchmark,
    *,
    tracked: Sequence[str],
    names: Sequence[str],
    most_ratio: float,
    other_unit: float,
) -> Iterator[Deviation]:
    """A run trains no more samples in a second than its own statistics say, in the median.

    Of benchmarks in ``tracked``, whose loggers count samples a second without evaluations. Ratios
    of ``other_unit`` or more are a warning: the statistics count something else.
    """
    rates = _tracked(log, benchmark, tracked, names)
    if rates is None:
        return
    rate, usual = rates
    if rate > most_ratio * usual:
        stop = log.first(keys.RUN_STOP)
        yield Deviation(
            f"at most the {usual:,.6g} samples/s that the run tracked",
            f"{rate:,.6g} from run_start to run_stop",
            stop.line if stop else None,
            severity=Severity.WARNING if rate >= other_unit * usual else None,
        )


@rule("mlperf.common_rates", scope="mlperf.result", source=_PERIOD, remedy=_WHOLE)
def rates_agree_alike(
    result: Result,
    benchmark: Benchmark,
    *,
    tracked: Sequence[str],
    names: Sequence[str],
    least_runs: int,
    most_ratio: float,
) -> Iterator[Deviation]:
    """Samples over time are the same share of the tracked rate in every run, up to a ratio.

    Results of fewer than ``least_runs`` runs that track their rate are not compared.
    """
    of_runs = [
        (run, rates[0] / rates[1])
        for run in result.runs
        if (rates := _tracked(run.log, benchmark, tracked, names)) is not None
    ]
    if len(of_runs) < least_runs:
        return
    usual = median(share for _, share in of_runs)
    for run, share in of_runs:
        if share > most_ratio * usual:
            stop = run.log.first(keys.RUN_STOP)
            yield Deviation(
                f"about {usual:.1%} of the samples/s that runs tracked, as in the other runs",
                f"{share:.1%}",
                stop.line if stop else None,
                run.number,
            )


def _tracked(
    log: Log, benchmark: Benchmark, tracked: Sequence[str], names: Sequence[str]
) -> tuple[float, float] | None:
    """Return samples per second of a run and the median of what it tracked; None if unknown.

    The median is of evenly spaced lines.
    """
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    if benchmark.name not in tracked or start is None or stop is None:
        return None
    entries = log.all(keys.TRACKED_STATS)
    rates = [
        float(rate)
        for entry in entries[:: 1 + len(entries) // _MOST_TRACKED]
        if isinstance(entry.value, dict)
        for name in names
        if (rate := number(entry.value.get(name), 0))
    ]
    edition = benchmark.edition
    samples = samples_of(log, benchmark.name, count_key([log], benchmark.name, edition), edition)
    run_s = (stop.time_ms - start.time_ms) / 1000
    if not rates or not samples or samples < 0 or run_s <= 0:
        return None
    return samples / run_s, median(rates)


@rule(
    "mlperf.pace",
    scope="mlperf.log",
    source=_PERIOD,
    remedy=_WHOLE,
    severity=Severity.WARNING,
)
def pace_is_steady(
    log: Log, benchmark: Benchmark, *, least: int, most_ratio: float
) -> Iterator[Deviation]:
    """The halves of a run take about as long from one evaluation to the next.

    Halves of fewer than ``least`` intervals are not compared.
    """
    evaluations = benchmark.evaluations(log)
    gaps = [after.time_ms - before.time_ms for before, after in pairwise(evaluations)]
    half = len(gaps) // 2
    if half < least:
        return
    first, second = median(gaps[:half]), median(gaps[half:])
    slower, faster = max(first, second), min(first, second)
    if faster > 0 and slower / faster > most_ratio:
        found = f"{first / 1000:g} s in the first half, {second / 1000:g} s in the second"
        expected = f"as much time between evaluations throughout, up to {most_ratio:g} times"
        yield Deviation(expected, found, evaluations[half].line)
