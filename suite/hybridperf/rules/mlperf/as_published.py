"""Check logs of an MLPerf round like its compliance checker: mode ``as-published``."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hybridperf.findings import Finding, Severity
from hybridperf.rules.mlperf.ruleset import unmet
from hybridperf.rules.reading import READING, unreadable_log
from hybridperf.rules.rule import first_of, misspelt
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from hybridperf.log.log import Entry, Log
    from hybridperf.rules.mlperf.ruleset import Demand, Ruleset

__all__ = ["judge"]

_Entries = dict[str, list["Entry"]]


def judge(log: Log, ruleset: Ruleset) -> list[Finding]:
    """Return the findings in ``log`` by the criteria of the round's compliance checker."""
    if unreadable := unreadable_log(log):
        return unreadable
    entries = log.by_key
    found = list(log.findings)
    known = {demand.key for demand in ruleset.demands}
    for demand in ruleset.demands:
        if _applies(demand.when, entries):
            found += _judge_key(log.path, demand, entries, known)
    found += _judge_order(log.path, ruleset.order, entries)
    for interval in ruleset.intervals:
        if _applies(interval.when, entries) and {interval.first, interval.last} <= set(entries):
            last = entries[interval.last][0]
            took_ms = last.time_ms - entries[interval.first][0].time_ms
            if took_ms > interval.most_minutes * 60_000:
                expected = f"{interval.last} within {interval.most_minutes} min of {interval.first}"
                took = f"{took_ms / 1000} s"
                found.append(_wrong("mlperf.initialisation", log.path, expected, took, last))
    return found


def _applies(when: Mapping[str, object], entries: _Entries) -> bool:
    return all(key in entries and entries[key][0].value == value for key, value in when.items())


def _judge_key(
    path: str, demand: Demand, entries: _Entries, known: Collection[str]
) -> Iterator[Finding]:
    key, here = demand.key, entries.get(demand.key, [])
    yield from _judge_count(path, demand, entries, known)
    if not here:
        return
    if demand.value and (wrong := [each for each in here if unmet(demand.value, each.value)]):
        expected = f"{key} {unmet(demand.value, wrong[0].value)}"
        found = f"{wrong[0].value!r:.80}{_also(wrong)}"
        yield _wrong("mlperf.values", path, expected, found, wrong[0])
    missed = unmet(demand.reached, here[0].value)
    if missed and all(unmet(demand.reached, entry.value) for entry in here):
        numbers = [each for entry in here if (each := number(entry.value)) is not None]
        best = f"{max(numbers)!r:.80} as the highest" if numbers else "no number"
        yield _wrong("mlperf.target", path, f"{key} {missed} once at least", best, here[-1])
    for name, constraints in demand.metadata.items():
        lacking = [
            entry
            for entry in here
            if name not in entry.metadata
            or (constraints and unmet(constraints, entry.metadata[name]))
        ]
        if lacking:
            entry = lacking[0]
            found = repr(entry.metadata[name])[:80] if name in entry.metadata else "none"
            words = unmet(constraints, entry.metadata.get(name)) or ""
            expected = f"{key} with {name} {words}".rstrip() + " in its metadata"
            yield _wrong("mlperf.metadata", path, expected, f"{found}{_also(lacking)}", entry)
    for name, tensors in demand.covers.items():
        missing = sorted(tensors - {str(entry.metadata.get(name)) for entry in here})
        if missing:
            expected = f"{key} of all {len(tensors)} tensors"
            yield _wrong("mlperf.tensors", path, expected, f"none of {first_of(missing)}")


def _judge_count(
    path: str, demand: Demand, entries: _Entries, known: Collection[str]
) -> Iterator[Finding]:
    key, here = demand.key, entries.get(demand.key, [])
    if demand.occurs and not here and demand.instead not in entries:
        often = "exactly once" if demand.occurs == "exactly_one" else "at least once"
        either = f" or {demand.instead}" if demand.instead else ""
        found = f"none{misspelt(key, entries, known)}"
        yield _wrong("mlperf.keys", path, f"{key}{either} {often}", found)
    elif demand.occurs == "exactly_one" and len(here) > 1:
        # The checker only warned of keys repeated with the same value.
        differing = next((each for each in here if each.value != here[0].value), None)
        values = "the same value" if differing is None else "differing values"
        severity = Severity.WARNING if differing is None else Severity.ERROR
        found = f"{len(here)} times with {values}"
        entry = differing or here[1]
        yield _wrong("mlperf.keys", path, f"{key} exactly once", found, entry, severity)


def _judge_order(path: str, order: tuple[str, ...], entries: _Entries) -> Iterator[Finding]:
    firsts = [entries[key][0] for key in order if key in entries]
    for before, after in pairwise(firsts):
        if after.line < before.line:
            yield _wrong(
                "mlperf.order", path, f"{before.key} before {after.key}", "the opposite", after
            )


def _also(entries: list[Entry]) -> str:
    return f" and on {len(entries) - 1} more lines" if len(entries) > 1 else ""


def _wrong(
    rule: str,
    path: str,
    expected: str,
    found: str,
    entry: Entry | None = None,
    severity: Severity = Severity.ERROR,
) -> Finding:
    line = None if entry is None else entry.line
    return Finding(rule, expected, found, READING[rule].remedy, path, line, severity)
