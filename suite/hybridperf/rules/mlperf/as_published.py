"""Check logs of an MLPerf round like its compliance checker: mode ``as-published``."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from hybridperf.findings import Finding, Severity
from hybridperf.log import keys
from hybridperf.rules.mlperf.constraints import in_words, is_comparable, keeps, unmet
from hybridperf.rules.mlperf.ruleset import joined_evaluations
from hybridperf.rules.rule import READING, first_of, misspelt, unreadable_log
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hybridperf.log.log import Entry, Log
    from hybridperf.rules.mlperf.constraints import Constraints
    from hybridperf.rules.mlperf.ruleset import Demand, Ruleset

__all__ = ["check_as_published"]

_Entries = dict[str, list["Entry"]]


def check_as_published(log: Log, ruleset: Ruleset) -> list[Finding]:
    """Return the findings in ``log`` by the criteria of the round's compliance checker."""
    if unreadable := unreadable_log(log):
        return unreadable
    entries = log.by_key
    found = list(log.findings)
    if join := ruleset.join_of(log):
        joined, left_out = joined_evaluations(log, join)
        entries = entries | {join.into: joined} if joined else entries
        if left_out:
            expected = f"{join.key} with {join.by} and the name of a metric in its metadata"
            found.append(_wrong("mlperf.metadata", log.path, expected, "neither", left_out[0]))
    for demand in ruleset.demands_on(log):
        for finding in _judge_key(log, demand, entries, ruleset):
            mild = demand.severity is not Severity.ERROR
            found.append(replace(finding, severity=demand.severity) if mild else finding)
    # That one key is before another is demanded of both.
    orders = {each.expected: each for each in found if each.rule == "mlperf.order"}
    return [each for each in found if each.rule != "mlperf.order" or orders[each.expected] is each]


def _judge_key(log: Log, demand: Demand, entries: _Entries, ruleset: Ruleset) -> Iterator[Finding]:
    here = entries.get(demand.key, [])
    if not here:
        if demand.least and not any(key in entries for key in demand.instead):
            yield _missing(log.path, demand, entries, ruleset)
        if demand.covers and not demand.least:
            yield from _judge_coverage(log.path, demand, here)
        return
    yield from _judge_count(log.path, demand, here)
    judged = here[:1] if demand.key.startswith("submission_") else here
    if demand.value:
        yield from _judge_values(log, demand, judged, entries)
    if demand.reached:
        yield from _judge_target(log, demand, here, entries)
    if demand.metadata or demand.first_metadata or demand.metadata_any:
        yield from _judge_metadata(log, demand, here, entries)
    if demand.covers:
        yield from _judge_coverage(log.path, demand, here)
    if demand.after or demand.before:
        yield from _judge_order(log, demand, here, entries)
    if demand.within:
        yield from _judge_time(log, demand, here, entries)


def _missing(path: str, demand: Demand, entries: _Entries, ruleset: Ruleset) -> Finding:
    often = _often(demand.least, demand.most)
    either = " or ".join([demand.key, *demand.instead])
    found = f"none{misspelt(demand.key, entries, ruleset.keys)}"
    return _wrong("mlperf.keys", path, f"{either} {often}", found)


def _judge_count(path: str, demand: Demand, here: list[Entry]) -> Iterator[Finding]:
    key, count = demand.key, len(here)
    expected = f"{key} {_often(demand.least, demand.most)}"
    if count < demand.least:
        yield _wrong("mlperf.keys", path, expected, f"{count} times", here[-1])
    elif demand.most is not None and count > demand.most:
        # The checker only warned of keys repeated with the same value.
        first = here[0].value
        differing = next((e for e in here if e.value is not first and e.value != first), None)
        values = "the same value" if differing is None else "differing values"
        severity = Severity.WARNING if differing is None else Severity.ERROR
        found = f"{count} times with {values}"
        entry = differing or here[demand.most]
        yield _wrong("mlperf.keys", path, expected, found, entry, severity)


def _often(least: int, most: int | None) -> str:
    words = {1: "once", 2: "twice"}
    if most is not None and most == least:
        return "exactly " + words.get(least, f"{least} times")
    if not least:
        return "at most " + words.get(most or 0, f"{most} times")
    return "at least " + words.get(least, f"{least} times")


def _judge_values(
    log: Log, demand: Demand, here: list[Entry], entries: _Entries
) -> Iterator[Finding]:
    wrong = [
        (entry, words)
        for entry in here
        if (words := unmet(demand.value, entry.value, _named(log, demand, entry, entries)))
    ]
    if wrong:
        entry, words = wrong[0]
        found = f"{entry.value!r:.80}{_also(len(wrong))}"
        yield _wrong("mlperf.values", log.path, f"{demand.key} {words}", found, entry)


def _named(log: Log, demand: Demand, entry: Entry, entries: _Entries) -> dict[str, object]:
    """Return the last values before ``entry`` of the keys that the demand's formulas name."""
    if not demand.names:
        return {}
    values: dict[str, object] = {}
    for name in demand.names:
        for other in entries.get(name, ()):
            if not _precedes(log, other, entry):
                break
            values[name] = other.value
    return values


def _judge_target(
    log: Log, demand: Demand, here: list[Entry], entries: _Entries
) -> Iterator[Finding]:
    reached, best = demand.reached, False
    for entry in here:
        best = best or keeps(reached, entry.value, _named(log, demand, entry, entries))
        if not is_comparable(reached, entry.value):  # the checker ended with an exception
            found = f"{entry.value!r:.80}"
            yield _wrong("mlperf.values", log.path, f"numbers as {demand.key}", found, entry)
            return
    if not best:
        expected = f"{demand.key} {in_words(reached)} once at least"
        yield _wrong("mlperf.target", log.path, expected, _best(reached, here), here[-1])


def _best(reached: Constraints, here: list[Entry]) -> str:
    if "fields" in reached:
        return f"{here[-1].value!r:.80} at the end"
    numbers = [each for entry in here if (each := number(entry.value)) is not None]
    if not numbers:
        return "no number"
    if _is_better_low(reached):
        return f"{min(numbers)!r:.80} as the lowest"
    return f"{max(numbers)!r:.80} as the highest"


def _is_better_low(reached: Constraints) -> bool:
    """Tell whether the target is an upper limit, such as of a loss; a share has one too, of 1."""
    if {"minimum", "holds"} & set(reached):
        return False
    return "maximum" in reached or ("below" in reached and "above" not in reached)


def _judge_metadata(
    log: Log, demand: Demand, here: list[Entry], entries: _Entries
) -> Iterator[Finding]:
    lacking: list[tuple[Entry, str, str]] = []
    if demand.is_simple:  # fast: weights, blocks and evaluations have many lines
        names = demand.metadata
        if not [1 for entry in here for name in names if name not in entry.metadata]:
            return
    for position, entry in enumerate(here):
        if demand.names:
            values = _named(log, demand, entry, entries) | {"position": position}
        else:
            values = {}
        if problem := _lacks(demand, entry.metadata, values, first=not position):
            lacking.append((entry, *problem))
    if lacking:
        entry, words, found = lacking[0]
        expected = f"{demand.key} with {words} in its metadata"
        yield _wrong("mlperf.metadata", log.path, expected, f"{found}{_also(len(lacking))}", entry)


def _lacks(
    demand: Demand, metadata: Mapping[str, object], values: Mapping[str, object], *, first: bool
) -> tuple[str, str] | None:
    """Return what ``metadata`` should have and what it has, if it violates the demand."""
    asked = dict(demand.metadata)
    if first:
        asked |= demand.first_metadata
    for name, constraints in asked.items():
        if name not in metadata:
            return f"{name} {in_words(constraints)}".rstrip(), "none"
        if wrong := unmet(constraints, metadata[name], values):
            return f"{name} {wrong}", f"{metadata[name]!r:.80}"
    if demand.metadata_any and not any(name in metadata for name in demand.metadata_any):
        return " or ".join(demand.metadata_any), "none"
    for name, constraints in demand.metadata_if.items():
        if name in metadata and (wrong := unmet(constraints, metadata[name], values)):
            return f"{name} {wrong}", f"{metadata[name]!r:.80}"
    for name, other in demand.metadata_with.items():
        if name in metadata and other not in metadata:
            return f"{other} beside {name}", "none"
    return None


def _judge_coverage(path: str, demand: Demand, here: list[Entry]) -> Iterator[Finding]:
    """Compare the metadata of all lines with a list, in which each stands once."""
    for name, wanted in demand.covers.items():
        logged = Counter(str(entry.metadata[name]) for entry in here if name in entry.metadata)
        if logged == Counter(wanted):
            continue
        missing, other = sorted(set(wanted) - set(logged)), sorted(set(logged) - set(wanted))
        repeated = sorted(each for each, count in logged.items() if count > 1)
        found = [
            f"{word} {first_of([f'{each:.80}' for each in names])}"
            for word, names in (("none of", missing), ("also", other), ("twice", repeated))
            if names
        ]
        expected = f"{demand.key} of all {len(wanted)} {name}s, each once"
        entry = next((e for e in here if str(e.metadata.get(name)) in {*other, *repeated}), None)
        yield _wrong("mlperf.tensors", path, expected, ", ".join(found), entry)


def _judge_order(
    log: Log, demand: Demand, here: list[Entry], entries: _Entries
) -> Iterator[Finding]:
    for key in demand.after:
        other = entries.get(key)
        if other is None or not _precedes(log, other[0], here[0]):
            found = "the opposite" if other else f"no {key}"
            yield _wrong("mlperf.order", log.path, f"{key} before {demand.key}", found, here[0])
    for key in demand.before:
        other = entries.get(key)
        if other and _precedes(log, other[0], here[-1]):
            expected = f"{demand.key} before {key}"
            yield _wrong("mlperf.order", log.path, expected, "the opposite", here[-1])


def _judge_time(
    log: Log, demand: Demand, here: list[Entry], entries: _Entries
) -> Iterator[Finding]:
    assert demand.within is not None
    minutes = demand.within.minutes
    for entry in here:
        begun = [e for e in entries.get(demand.within.of, ()) if _precedes(log, e, entry)]
        if not begun:
            continue  # an error in the order
        most = minutes["closed"]
        if minutes["open"] != most:  # the checker learnt it from the line that states the division
            stated = next(iter(entries.get(keys.SUBMISSION_DIVISION, ())), None)
            if stated is None or not _precedes(log, stated, entry):
                most = 0
            elif stated.value == "open":
                most = minutes["open"]
        took_ms = entry.time_ms - min(each.time_ms for each in begun)
        if took_ms >= most * 60_000:
            expected = f"{demand.key} less than {most:g} min after {demand.within.of}"
            found = f"{took_ms / 1000} s"
            if not most:
                expected = f"{keys.SUBMISSION_DIVISION} before {demand.key}, whose limit it sets"
                found = "the opposite"
            yield _wrong("mlperf.initialisation", log.path, expected, found, entry)
            return


def _precedes(log: Log, one: Entry, other: Entry) -> bool:
    if one.line != other.line:
        return one.line < other.line
    # A carriage return ended a line for the checker, so that one line has several entries.
    return next(each for each in log.entries if each is one or each is other) is one is not other


def _also(count: int) -> str:
    return f" and on {count - 1} more lines" if count > 1 else ""


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
