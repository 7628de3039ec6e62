"""Rules for the format of one log: keys, order, intervals and clock."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.rules.rule import Deviation, misspelt, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.package import SealedRun
    from hybridperf.tasks.task import Task

_RERUN: Final = "run again with 'hybridperf run', and never edit a log"
_KNOWN: Final = frozenset(value for value in vars(keys).values() if isinstance(value, str))
_TIMED: Final = frozenset(
    {keys.BLOCK_START, keys.BLOCK_STOP, keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY}
)


@rule(
    "log.keys",
    scope="run",
    source="MLPerf Training 2.1.0, common.yaml: required keys",
    remedy="log every required key as often as the rule says",
)
def required_keys(
    run: SealedRun, task: Task, *, exactly_one: Sequence[str], at_least_one: Sequence[str]
) -> Iterator[Deviation]:
    """Required keys occur as often as they must."""
    counts = Counter(entry.key for entry in run.log.entries)
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
    scope="run",
    source="MLPerf Training rules, section 6: the clock runs without pause",
    remedy=_RERUN,
)
def time_runs_forward(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Time stamps never decrease."""
    entries = run.log.entries
    for before, after in pairwise(entries):
        if after.time_ms < before.time_ms:
            back_s = (before.time_ms - after.time_ms) / 1000
            yield Deviation(
                "time stamps that never decrease", f"a step back of {back_s:g} s", after.line
            )


@rule(
    "log.intervals",
    scope="run",
    source="HybridPerf rules, section 2: intervals pair and nest",
    remedy=_RERUN,
)
def intervals_nest(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Every interval that starts also stops, and intervals nest."""
    running: list[tuple[str, int]] = []
    open_names: Counter[str] = Counter()
    ended = run.log.first(keys.ENDING) is not None  # an ended run leaves intervals open
    for entry in run.log.entries:
        name, _, edge = entry.key.rpartition("_")
        if entry.event_type == "INTERVAL_START" and edge == "start":
            if open_names[name]:
                yield Deviation(f"{name}_stop before the next {name}_start", "none", entry.line)
            running.append((name, entry.line))
            open_names[name] += 1
        elif entry.event_type == "INTERVAL_END" and edge == "stop":
            if not open_names[name]:
                yield Deviation(f"{name}_start before {name}_stop", "none", entry.line)
            elif running[-1][0] != name and not ended:
                yield Deviation(f"{running[-1][0]}_stop first", f"{name}_stop", entry.line)
            while open_names[name]:
                open_names[running.pop()[0]] -= 1
    for name, line in running:
        if not ended:
            yield Deviation(f"{name}_stop after {name}_start", "none", line)


@rule(
    "log.order",
    scope="run",
    source="MLPerf Training rules, section 6.1: clear caches, initialise, run",
    remedy=_RERUN,
)
def phases_in_order(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Caches are cleared, the model is initialised, and the run contains all the rest."""
    order = (keys.CACHE_CLEAR, keys.INIT_START, keys.INIT_STOP, keys.RUN_START, keys.RUN_STOP)
    present = [entry for entry in map(run.log.first, order) if entry is not None]
    for before, after in pairwise(present):
        if after.line < before.line:
            yield Deviation(f"{before.key} before {after.key}", "the opposite", after.line)
    start, stop = run.log.first(keys.RUN_START), run.log.first(keys.RUN_STOP)
    for entry in run.log.entries:
        if entry.key in _TIMED and start and entry.line < start.line:
            yield Deviation(f"{entry.key} after run_start", "before it", entry.line)
        if entry.key in _TIMED and stop and entry.line > stop.line:
            yield Deviation(f"{entry.key} before run_stop", "after it", entry.line)
    clear = run.log.first(keys.CACHE_CLEAR)
    if clear is not None and clear.value is not True:
        yield Deviation("cache_clear with the value true", repr(clear.value), clear.line)


@rule(
    "log.initialisation",
    scope="run",
    source="MLPerf Training rules, section 6.1: initialisation is bounded; the rest is timed",
    remedy="initialise faster, and start the clock as soon as that is done",
)
def initialisation_bounded(run: SealedRun, task: Task, *, most_gap_s: float) -> Iterator[Deviation]:
    """Initialisation directly follows the cleared caches, keeps its limit, and precedes the run."""
    start, stop = run.log.first(keys.INIT_START), run.log.first(keys.INIT_STOP)
    if (
        start
        and stop
        and (took_s := (stop.time_ms - start.time_ms) / 1000)
        > (limit_s := task.limits.initialisation_s)
    ):
        yield Deviation(f"at most {limit_s:g} s of initialisation", f"{took_s:g} s", stop.line)
    for end, next_start in ((keys.CACHE_CLEAR, keys.INIT_START), (keys.INIT_STOP, keys.RUN_START)):
        before, after = run.log.first(end), run.log.first(next_start)
        if before and after and (gap_s := (after.time_ms - before.time_ms) / 1000) > most_gap_s:
            expected = f"{next_start} within {most_gap_s:g} s of {end}"
            yield Deviation(expected, f"{gap_s:g} s", after.line)


@rule(
    "log.chain",
    scope="run",
    source="HybridPerf rules, section 2: every line carries the hash of all before it",
    remedy=_RERUN,
)
def hash_chained(run: SealedRun, task: Task) -> Iterator[Deviation]:
    """Every line carries a hash; wrong hashes are found while reading."""
    if not run.log.chained and not any(each.rule == "log.chain" for each in run.log.findings):
        yield Deviation("a hash on every line", "none")
