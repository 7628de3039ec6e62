"""Rules for the format of an MLPerf log: event types, metadata and intervals."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity
from hybridperf.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.log import Log
    from hybridperf.rules.mlperf.ruleset import Benchmark

_LOGGER: Final = (
    "log with an MLPerf logger: its start() and end() for intervals, event() for points"
)
_EDGES: Final = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}


@rule(
    "mlperf.events",
    scope="mlperf.log",
    source="MLPerf logging, mllog: a line has one of the event types POINT_IN_TIME, "
    "INTERVAL_START and INTERVAL_END, and its metadata names file and lineno",
    remedy=_LOGGER,
    severity=Severity.WARNING,
)
def events_are_known(
    log: Log, benchmark: Benchmark, *, types: Sequence[str], metadata: Sequence[str]
) -> Iterator[Deviation]:
    """Every line has a known event type and names the line of code that wrote it."""
    if {entry.event_type for entry in log.entries} - set(types):
        unknown = [entry for entry in log.entries if entry.event_type not in types]
        found = f"{unknown[0].event_type!r:.40} and {len(unknown) - 1} more"
        yield Deviation(f"an event_type of {', '.join(types)}", found, unknown[0].line)
    for name in metadata:
        lacking = [entry for entry in log.entries if name not in entry.metadata]
        if lacking:
            found = f"none on {len(lacking)} lines"
            yield Deviation(f"{name} in the metadata of every line", found, lacking[0].line)


@rule(
    "mlperf.intervals",
    scope="mlperf.log",
    source="MLPerf logging, mllog: an interval is one line INTERVAL_START and one INTERVAL_END",
    remedy=_LOGGER,
    severity=Severity.WARNING,
)
def intervals_nest(log: Log, benchmark: Benchmark, *, names: Sequence[str]) -> Iterator[Deviation]:
    """Blocks, epochs and evaluations that start also stop, and intervals nest."""
    running: list[tuple[str, int]] = []
    found: dict[tuple[str, str], list[int]] = {}
    open_names: Counter[str] = Counter()
    edges = [each for name in names for edge in _EDGES for each in log.all(f"{name}_{edge}")]
    for entry in sorted(edges, key=attrgetter("line")):
        name, _, edge = entry.key.rpartition("_")
        if edge == "start":
            if open_names[name]:
                found.setdefault((f"{name}_stop before the next {name}_start", "none"), []).append(
                    entry.line
                )
            running.append((name, entry.line))
            open_names[name] += 1
        elif not open_names[name]:
            found.setdefault((f"{name}_start before {name}_stop", "none"), []).append(entry.line)
        else:
            if running[-1][0] != name:
                crossed = (f"{running[-1][0]}_stop first", f"{name}_stop")
                found.setdefault(crossed, []).append(entry.line)
            while open_names[name]:
                open_names[running.pop()[0]] -= 1
    for name, line in running:
        found.setdefault((f"{name}_stop after {name}_start", "none"), []).append(line)
    for (expected, instead), lines in found.items():
        more = f" in {len(lines)} places" if len(lines) > 1 else ""
        yield Deviation(expected, instead + more, lines[0])


@rule(
    "mlperf.edges",
    scope="mlperf.log",
    source="MLPerf logging, mllog: what starts is logged as INTERVAL_START, what stops as "
    "INTERVAL_END",
    remedy=_LOGGER,
    severity=Severity.WARNING,
)
def edges_are_intervals(
    log: Log, benchmark: Benchmark, *, names: Sequence[str]
) -> Iterator[Deviation]:
    """Lines that start or stop an interval have the matching event type."""
    for name in names:
        for edge, event_type in _EDGES.items():
            other = [e for e in log.all(f"{name}_{edge}") if e.event_type != event_type]
            if other:
                found = f"{other[0].event_type!r:.40}"
                yield Deviation(f"{name}_{edge} as {event_type}", found, other[0].line)
