"""Rules for all runs of one result of a round of MLPerf together, and for the place they lie in."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.log.package import scaling_factor
from hybridperf.rules.mlperf.log_rules import CONTIGUOUS_PERIOD, SUBMIT_AS_WRITTEN, run_ms
from hybridperf.rules.rule import Deviation, rule
from hybridperf.score.convergence import count_key, samples_of
from hybridperf.system.catalog import accelerator_count, accelerators_per_node, node_count
from hybridperf.untrusted import COUNT_CAP, number, reason, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result
    from hybridperf.rules.mlperf.ruleset import Benchmark

_INDEPENDENT: Final = (
    "MLPerf Training rules, Scoring: each submission is 'a set of N independent runs'"
)
# Bounds on memory: results of ten rounds have up to 40 runs, of up to 319 evaluations.
_MOST_COMPARED: Final = 2000  #: evaluations of a run
_MOST_KEPT: Final = 100_000  #: parts of all runs of a result
_TRACKED: Final = "tracked statistics"  #: all of a run are equal by chance in none, however few
_MOST_TRACKED: Final = 500  #: lines of statistics that are looked at; logs have up to 1,352
_LAYOUT: Final = "MLPerf submission rules, 'Directory structure'"
_FIELDS: Final = "MLPerf submission rules, '<system_desc_id>.json metadata'"
_COUNT: Final = re.compile(r"\s*([0-9]{1,6})\s*x\s*(?=\S)")


@rule(
    "mlperf.copies",
    scope="result",
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
    scope="result",
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


@rule(
    "mlperf.twins",
    scope="result",
    source=_INDEPENDENT,
    remedy="submit the runs as they were made, each with a seed of its own",
)
def runs_differ(
    result: Result,
    benchmark: Benchmark,
    *,
    least: Mapping[str, int],
    whole: Sequence[str],
) -> Iterator[Deviation]:
    """No two runs log the same in a row, as one that is put together from parts of others does.

    ``least`` is how many different values in a row are not equal by chance: qualities, times
    between evaluations, both, and what runs track, which a copy has though its times were changed.
    Of benchmarks in ``whole``, parts of runs may be equal.
    """
    seen: dict[tuple[object, ...], int] = {}
    for run in result.runs:
        evaluations = benchmark.evaluations(run.log)[:_MOST_COMPARED]
        tracked = run.log.all(keys.TRACKED_STATS)[:_MOST_COMPARED]
        times = [entry.time_ms for entry in evaluations]
        gaps = [after - before for before, after in pairwise(times)]
        values = [repr(entry.value)[:200] for entry in evaluations]
        rows: dict[str, Sequence[object]] = {
            "qualities": values,
            "times between evaluations": gaps,
            "qualities and times": list(zip(values[1:], gaps, strict=True)) if values else [],
            _TRACKED: [repr(entry.value)[:200] for entry in tracked],
        }
        for what, row in rows.items():
            fewest = 1 if what == _TRACKED else least["whole"]
            parts = list(_parts(row, least[what], fewest, whole=benchmark.name in whole))
            copied = next((part for part in parts if (what, *part) in seen), None)
            if copied is not None:
                found = f"{len(copied)} {what} in a row of run {seen[what, *copied]}"
                yield Deviation(f"{what} of its own", found, run=run.number)
                break
            if len(seen) < _MOST_KEPT:
                seen |= {(what, *part): run.number for part in parts}


def _parts(
    row: Sequence[object], least: int, least_whole: int, *, whole: bool
) -> Iterator[tuple[object, ...]]:
    """Yield what of ``row`` no other run has by chance: parts of it, or all of a shorter one.

    All values of a part differ, and ``least_whole`` of a whole.
    """
    whole = whole or len(row) < least
    size = len(row) if whole else least
    different = min(size, least_whole) if whole else size
    if size < min(least, least_whole):
        return
    for first in range(len(row) - size + 1):
        part = tuple(row[first : first + size])
        if len(set(part)) >= different:
            yield part


@rule("mlperf.rates", scope="result", source=CONTIGUOUS_PERIOD, remedy=SUBMIT_AS_WRITTEN)
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
    run_s = run_ms(log) / 1000
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


@rule(
    "place.benchmark",
    scope="result",
    source=f"{_LAYOUT}: benchmark directory names are the keywords that logs use",
    remedy="put the log into the folder of its benchmark",
)
def benchmark_is_the_folder(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """The log names the benchmark of its folder."""
    folder = result.package.benchmark
    for run in result.runs:
        entry = run.log.first(keys.SUBMISSION_BENCHMARK)
        if entry is not None and entry.value != folder:
            expected = f"{entry.key} {folder}, as the folder is called"
            yield Deviation(expected, f"{entry.value!r:.80}", entry.line, run.number)


@rule(
    "place.division",
    scope="result",
    source="MLPerf submission rules, 'Results tables': one for Closed and one for Open",
    remedy="enter the result into the division that its logs were made for",
)
def division_is_the_systems(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """The log names the division of the system's description."""
    stated = (result.system or {}).get("division")
    if not isinstance(stated, str):
        return
    for run in result.runs:
        entry = run.log.first(keys.SUBMISSION_DIVISION)
        if entry is None or str(entry.value).casefold() == stated.casefold():
            continue
        # Closed logs may be submitted to the open division, but not vice versa.
        closed = str(entry.value).casefold() == "closed"
        yield Deviation(
            f"{entry.key} {stated}, as in the system's description",
            f"{entry.value!r:.80}",
            entry.line,
            run.number,
            severity=Severity.WARNING if closed else None,
        )


@rule(
    "place.organisation",
    scope="result",
    source=f"{_LAYOUT}: <submitting_organization>/",
    remedy="log the organisation that submits the result",
    severity=Severity.WARNING,
)
def organisation_is_the_folder(result: Result, benchmark: Benchmark) -> Iterator[Deviation]:
    """Logs name the organisation of their folder."""
    folder = result.package.org

    def other(value: str) -> bool:
        return value.casefold() != folder.casefold()

    expected = f"{keys.SUBMISSION_ORG} {folder}, as the folder is called"
    yield from _counted(result, keys.SUBMISSION_ORG, other, expected)


@rule(
    "place.status",
    scope="result",
    source="MLPerf submission rules, 'Results categories'",
    remedy="log the category that the description enters the result into",
    severity=Severity.WARNING,
)
def status_is_the_systems(
    result: Result, benchmark: Benchmark, *, said_of: Mapping[str, Sequence[str]]
) -> Iterator[Deviation]:
    """Logs name the description's category, in one of the words that ``said_of`` lists for it."""
    stated = str((result.system or {}).get("status", "")).strip()
    known = said_of.get(stated.casefold())
    if known is None:
        return

    def other(value: str) -> bool:
        return value.casefold() not in known

    expected = f"{keys.SUBMISSION_STATUS} {' or '.join(known)}, as the system's status is {stated}"
    yield from _counted(result, keys.SUBMISSION_STATUS, other, expected)


@rule(
    "place.platform",
    scope="result",
    source=f"{_FIELDS}: number_of_nodes, accelerators_per_node",
    remedy="log the platform of the description",
    severity=Severity.WARNING,
)
def platform_is_the_system(
    result: Result, benchmark: Benchmark, *, placeholder: str
) -> Iterator[Deviation]:
    """Logs name a platform with the description's number of nodes or accelerators."""

    def unnamed(value: str) -> bool:
        return placeholder.casefold() in value.casefold()

    yield from _counted(result, keys.SUBMISSION_PLATFORM, unnamed, "the name of a platform")
    system = result.system or {}
    nodes, each = node_count(system), accelerators_per_node(system)
    if not nodes or each is None:
        return
    counts = {nodes, nodes * each, each} if nodes == 1 else {nodes, nodes * each}

    def miscounted(value: str) -> bool:
        match = _COUNT.match(value)
        return match is not None and int(match[1]) not in counts

    expected = f"a platform of {nodes} nodes with {each} accelerators, as in the description"
    yield from _counted(result, keys.SUBMISSION_PLATFORM, miscounted, expected)


def _counted(
    result: Result, key: str, wrong: Callable[[str], bool], expected: str
) -> Iterator[Deviation]:
    """Yield one deviation per wrong value of ``key``, with the number of logs that have it."""
    logs: dict[str, int] = defaultdict(int)
    for run in result.runs:
        entry = run.log.first(key)
        if entry is not None and wrong(str(entry.value)):
            logs[f"{entry.value!r:.80}"] += 1
    for value, count in logs.items():
        yield Deviation(expected, f"{value} in {count} of {len(result.runs)} logs")
