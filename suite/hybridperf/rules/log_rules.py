"""Rules for the format of one log: keys, order, intervals and clock; some are of MLPerf's too."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, misspelt, rule
from hybridperf.tasks.task import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.rules.mlperf.ruleset import Benchmark

_RERUN: Final = "run again with 'hybridperf run', and never edit a log"
ONE_CLOCK: Final = "stamp every line from one clock that is never adjusted"
LOGGER: Final = "log with an MLPerf logger: its start() and end() for intervals, event() for points"
EDGES: Final = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}  #: end of a key -> event type
_KNOWN: Final = frozenset(value for value in vars(keys).values() if isinstance(value, str))
_TIMED: Final = frozenset(
    {keys.BLOCK_START, keys.BLOCK_STOP, keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY}
)


@rule(
    "log.keys",
    scope="log",
    source="MLPerf Training 2.1.0, common.yaml: required keys",
    remedy="log every required key as often as the rule says",
)
def required_keys(
    log: Log, task: Task, *, exactly_one: Sequence[str], at_least_one: Sequence[str]
) -> Iterator[Deviation]:
    """Required keys occur as often as they must."""
    counts = Counter(entry.key for entry in log.entries)
    for key in exactly_one:
        if counts[key] != 1:
            found = (
                f"{counts[key]} times" if counts[key] else f"none{misspelt(key, counts, _KNOWN)}"
            )
            yield Deviation(f"{key} exactly once", found)
    for key in at_least_one:
        if not counts[key]:
            yield Deviation(f"{key} at least once", f"none{misspelt(key, counts, _KNOWN)}")


@rule(
    "log.time",
    scope="log",
    source="MLPerf Training rules, section 6: the clock runs without pause",
    remedy=_RERUN,
)
@rule(
    "mlperf.time",
    scope="log",
    source="MLPerf Training rules, Run Results: 'The clock may not be paused during the run'",
    remedy=ONE_CLOCK,
    severity=Severity.WARNING,
)
def time_runs_forward(
    log: Log, benchmark: Task | Benchmark, *, most_back_ms: int
) -> Iterator[Deviation]:
    """Time stamps go back no further than the processes that write a log may differ."""
    times_ms = [entry.time_ms for entry in log.entries]
    if times_ms == sorted(times_ms):
        return
    latest, worst = None, None
    back_ms = most_back_ms
    for entry in log.entries:
        if latest is None or entry.time_ms >= latest.time_ms:
            latest = entry
        elif latest.time_ms - entry.time_ms > back_ms:
            back_ms, worst = latest.time_ms - entry.time_ms, entry
    if worst is None:
        return
    if alone := _single_outlier(log.entries, most_back_ms):
        entry, off_ms = alone
        found = f"{entry.key!r:.60} alone {off_ms / 1000:+g} s off the lines around it"
        yield Deviation("stamps of one clock on all lines", found, entry.line)
    else:
        found = f"{back_ms / 1000:g} s back at {worst.key!r:.60}"
        most = f"no step back of more than {most_back_ms} ms"
        expected = most if most_back_ms else "time stamps that never decrease"
        yield Deviation(expected, found, worst.line)


def _single_outlier(entries: Sequence[Entry], most_back_ms: int) -> tuple[Entry, int] | None:
    """Return the line without which time runs forward, and how far it is off, if there is one."""
    steps = [
        place
        for place, (one, other) in enumerate(pairwise(entries))
        if one.time_ms - other.time_ms > most_back_ms
    ]
    for place in (steps[0], steps[0] + 1) if len(steps) == 1 else ():
        before, after = entries[max(place - 1, 0)], entries[min(place + 1, len(entries) - 1)]
        if 0 < place < len(entries) - 1 and before.time_ms <= after.time_ms + most_back_ms:
            nearest = before if entries[place].time_ms < before.time_ms else after
            return entries[place], entries[place].time_ms - nearest.time_ms
    return None


@rule(
    "log.intervals",
    scope="log",
    source="HybridPerf rules, section 2: intervals pair and nest",
    remedy=_RERUN,
)
@rule(
    "mlperf.intervals",
    scope="log",
    source="MLPerf logging, mllog: an interval is one line INTERVAL_START and one INTERVAL_END",
    remedy=LOGGER,
    severity=Severity.WARNING,
)
def intervals_nest(
    log: Log, benchmark: Task | Benchmark, *, names: Sequence[str]
) -> Iterator[Deviation]:
    """Every interval that starts also stops, and intervals nest.

    Intervals are those of ``names``, whatever their event type; without any, all lines that say so.
    """
    # A run of this suite that was ended leaves intervals open.
    ended = isinstance(benchmark, Task) and log.first(keys.ENDING) is not None
    running: list[tuple[str, int]] = []
    found: dict[tuple[str, str], list[int]] = {}
    open_names: Counter[str] = Counter()
    for entry in _edges(log, names):
        name, _, edge = entry.key.rpartition("_")
        if edge == "start":
            if open_names[name]:
                again = (f"{name}_stop before the next {name}_start", "none")
                found.setdefault(again, []).append(entry.line)
            running.append((name, entry.line))
            open_names[name] += 1
        elif not open_names[name]:
            found.setdefault((f"{name}_start before {name}_stop", "none"), []).append(entry.line)
        else:
            if running[-1][0] != name and not ended:
                crossed = (f"{running[-1][0]}_stop first", f"{name}_stop")
                found.setdefault(crossed, []).append(entry.line)
            while open_names[name]:
                open_names[running.pop()[0]] -= 1
    for name, line in running if not ended else ():
        found.setdefault((f"{name}_stop after {name}_start", "none"), []).append(line)
    for (expected, instead), lines in found.items():
        more = f" in {len(lines)} places" if len(lines) > 1 else ""
        yield Deviation(expected, instead + more, lines[0])


def _edges(log: Log, names: Sequence[str]) -> Iterable[Entry]:
    """Return the lines that start or stop an interval, in file order."""
    if names:
        edges = (each for name in names for edge in EDGES for each in log.all(f"{name}_{edge}"))
        return sorted(edges, key=attrgetter("line"))
    edge_of = {key: EDGES.get(key.rpartition("_")[2], "") for key in log.by_key}
    return (each for each in log.entries if edge_of[each.key] == each.event_type)


@rule(
    "log.order",
    scope="log",
    source="MLPerf Training rules, section 6.1: clear caches, initialise, run",
    remedy=_RERUN,
)
def phases_in_order(log: Log, task: Task) -> Iterator[Deviation]:
    """Caches are cleared, the model is initialised, and the run contains all the rest."""
    order = (keys.CACHE_CLEAR, keys.INIT_START, keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP)
    present = [entry for entry in map(log.first, order) if entry is not None]
    for before, after in pairwise(present):
        if after.line < before.line:
            yield Deviation(f"{before.key} before {after.key}", "the opposite", after.line)
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    for entry in log.entries:
        if entry.key in _TIMED and start and entry.line < start.line:
            yield Deviation(f"{entry.key} after run_start", "before it", entry.line)
        if entry.key in _TIMED and stop and entry.line > stop.line:
            yield Deviation(f"{entry.key} before run_stop", "after it", entry.line)
    clear = log.first(keys.CACHE_CLEAR)
    if clear is not None and clear.value is not True:
        yield Deviation("cache_clear with the value true", repr(clear.value), clear.line)


@rule(
    "log.initialisation",
    scope="log",
    source="MLPerf Training rules, section 6.1: initialisation is bounded; the rest is timed",
    remedy="initialise faster, and start the clock as soon as that is done",
)
def initialisation_bounded(log: Log, task: Task, *, most_gap_s: float) -> Iterator[Deviation]:
    """Initialisation directly follows the cleared caches, keeps its limit, and precedes the run."""
    start, stop = log.first(keys.INIT_START), log.first(keys.INIT_STOP)
    if (
        start
        and stop
        and (took_s := (stop.time_ms - start.time_ms) / 1000)
        > (limit_s := task.limits.initialisation_s)
    ):
        yield Deviation(f"at most {limit_s:g} s of initialisation", f"{took_s:g} s", stop.line)
    for end, next_start in ((keys.CACHE_CLEAR, keys.INIT_START), (keys.INIT_STOP, keys.RUN_START)):
        before, after = log.first(end), log.first(next_start)
        if before and after and (gap_s := (after.time_ms - before.time_ms) / 1000) > most_gap_s:
            expected = f"{next_start} within {most_gap_s:g} s of {end}"
            yield Deviation(expected, f"{gap_s:g} s", after.line)


@rule(
    "log.chain",
    scope="log",
    source="HybridPerf rules, section 2: every line carries the hash of all before it",
    remedy=_RERUN,
)
def hash_chained(log: Log, task: Task) -> Iterator[Deviation]:
    """Every line carries a hash; wrong hashes are found while reading."""
    if not log.chained and not any(each.rule == "log.chain" for each in log.findings):
        yield Deviation("a hash on every line", "none")
