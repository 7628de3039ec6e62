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
from hybridperf.system.catalog import accelerator_count
from hybridperf.untrusted import COUNT_CAP, number, whole

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


@rule("mlperf.evaluation_time", scope="log", source=_PERIOD, remedy=_WHOLE)
def evaluations_take_time(
    log: Log,
    benchmark: Benchmark,
    *,
    least_share: Mapping[str, float],
    least_of_run: float,
    evaluated_later: Sequence[str],
) -> Iterator[Deviation]:
    """Evaluations take time: each of them, a share of the median of the run's, and all of the run.

    Shares of the median below those of ``least_share`` are an error or a warning; in the open
    division a warning. Benchmarks whose checkpoints are evaluated later may log all of it at once.
    """
    spans = () if benchmark.name in evaluated_later else _spans(log)
    if not spans:
        return
    usual = median(span for span, _ in spans)
    shortest, line = min(spans)
    if shortest <= 0:
        yield Deviation("an evaluation to take time", f"{shortest / 1000:g} s", line)
    elif shortest < least_share["warning"] * usual:
        mild = shortest >= least_share["error"] * usual or division(log) == "open"
        yield Deviation(
            f"evaluations of about {usual / 1000:g} s, as the run's others are",
            f"{shortest / 1000:g} s",
            line,
            severity=Severity.WARNING if mild else None,
        )
    elif (run_ms := _run_ms(log)) and sum(span for span, _ in spans) < least_of_run * run_ms:
        share = sum(span for span, _ in spans) / run_ms
        expected = f"evaluations that take {least_of_run:.2%} of the run or more"
        yield Deviation(expected, f"{share:.4%}", line)


def _run_ms(log: Log) -> int:
    """Return the time from run_start to run_stop; 0 if unknown."""
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    return max(stop.time_ms - start.time_ms, 0) if start and stop else 0


def _spans(log: Log) -> list[tuple[int, int]]:
    """Return the time of each evaluation and the line it stops in, if starts and stops pair."""
    starts, stops = log.all(keys.EVAL_START), log.all(keys.EVAL_STOP)
    if len(starts) != len(stops):
        return []
    return [
        (stop.time_ms - start.time_ms, stop.line) for start, stop in zip(starts, stops, strict=True)
    ]


@rule("mlperf.training_time", scope="log", source=_PERIOD, remedy=_WHOLE)
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


@rule("mlperf.rates", scope="result", source=_PERIOD, remedy=_WHOLE)
def rates_agree(
    result: Result,
    benchmark: Benchmark,
    *,
    tracked: Sequence[str],
    names: Sequence[str],
    step_times: Sequence[str],
    of_processes: Sequence[str],
    most_ratio: float,
    least_ratio: Mapping[str, float],
) -> Iterator[Deviation]:
    """A run trains no more samples in a second than its own statistics say, in the median.

    Of benchmarks in ``tracked``. Where the statistics state how long a step takes, it trains no
    fewer than a share either. Those of ``of_processes`` may state what one process trains.
    """
    if benchmark.name not in tracked:
        return
    processes = accelerator_count(result.system) or 1
    for run in result.runs:
        rate = _rate(run.log, benchmark)
        by_step = _tracked(run.log, step_times)
        batch = whole(run.log.value(keys.GLOBAL_BATCH_SIZE), 1)
        if by_step and batch:
            stated, least = batch / by_step, least_ratio["step"]
        else:
            stated, least = _tracked(run.log, names), 0.0
        if not rate or not stated:
            continue
        ratio = rate / stated
        if benchmark.name in of_processes and ratio > most_ratio:
            stated, ratio, least = stated * processes, ratio / processes, least_ratio["process"]
        if not least <= ratio <= most_ratio:
            stop = run.log.first(keys.RUN_STOP)
            yield Deviation(
                f"about the {stated:,.6g} samples/s that the run tracked",
                f"{rate:,.6g} from run_start to run_stop",
                stop.line if stop else None,
                run.number,
            )


def _rate(log: Log, benchmark: Benchmark) -> float:
    """Return the samples per second of a run; 0 if unknown."""
    edition = benchmark.edition
    samples = samples_of(log, benchmark.name, count_key([log], benchmark.name, edition), edition)
    run_s = _run_ms(log) / 1000
    return max(samples or 0, 0) / run_s if run_s else 0.0


def _tracked(log: Log, names: Sequence[str]) -> float:
    """Return the median of what a run tracked under one of ``names``; 0 if nothing.

    It is of evenly spaced lines.
    """
    entries = log.all(keys.TRACKED_STATS)
    found = [
        float(figure)
        for entry in entries[:: 1 + len(entries) // _MOST_TRACKED]
        if isinstance(entry.value, dict)
        for name in names
        if (figure := number(entry.value.get(name), 0))
    ]
    return median(found) if found else 0.0


@rule(
    "mlperf.batch",
    scope="result",
    source="MLPerf Training rules, Hyperparameters: the batch size that is stated is the one "
    "trained with",
    remedy="log the global batch size of the run",
)
def samples_are_steps_of_batches(
    result: Result, benchmark: Benchmark, *, most_off: float, per_process: Sequence[str]
) -> Iterator[Deviation]:
    """Samples are steps times the batch size, where statistics count both.

    Of benchmarks in ``per_process``, the batches of all accelerators make the global batch.
    """
    processes = accelerator_count(result.system)
    for run in result.runs:
        log = run.log
        batch = whole(log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP)
        if not batch:
            continue
        entry = log.all(keys.GLOBAL_BATCH_SIZE)[-1]
        stated = f"{keys.GLOBAL_BATCH_SIZE} = {batch:,}"
        if (of_step := _samples_of_step(log)) and abs(of_step / batch - 1) > most_off:
            expected = f"{of_step:,.6g} samples a step, as the run tracked"
            yield Deviation(expected, stated, entry.line, run.number)
        each = whole(log.value("d_batch_size"), 1, COUNT_CAP)
        if benchmark.name in per_process and each and processes and each * processes != batch:
            expected = f"{processes:,} accelerators times batches of {each:,}"
            yield Deviation(expected, stated, entry.line, run.number)


def _samples_of_step(log: Log) -> float:
    """Return the samples of a step, by statistics that count both; 0 if unknown."""
    points = [
        (step, samples)
        for entry in log.all(keys.TRACKED_STATS)
        if (step := number(entry.metadata.get("step"), 0, COUNT_CAP)) is not None
        and (samples := number(entry.metadata.get("samples_count"), 0, COUNT_CAP)) is not None
    ]
    if not points:
        return 0.0
    first, last = min(points), max(points)
    return (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else 0.0
