"""Rules for the format of an MLPerf log: event types, metadata and intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.findings import Severity
from hybridperf.rules.log_rules import EDGES, LOGGER
from hybridperf.rules.rule import Deviation, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.log.log import Log
    from hybridperf.rules.mlperf.ruleset import Benchmark


@rule(
    "mlperf.events",
    scope="log",
    source="MLPerf logging, mllog: a line has one of the event types POINT_IN_TIME, "
    "INTERVAL_START and INTERVAL_END, and its metadata names file and lineno",
    remedy=LOGGER,
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
    "mlperf.edges",
    scope="log",
    source="MLPerf logging, mllog: what starts is logged as INTERVAL_START, what stops as "
    "INTERVAL_END",
    remedy=LOGGER,
    severity=Severity.WARNING,
)
def edges_are_intervals(
    log: Log, benchmark: Benchmark, *, names: Sequence[str]
) -> Iterator[Deviation]:
    """Lines that start or stop an interval have the matching event type."""
    for name in names:
        for edge, event_type in EDGES.items():
            other = [e for e in log.all(f"{name}_{edge}") if e.event_type != event_type]
            if other:
                found = f"{other[0].event_type!r:.40}"
                yield Deviation(f"{name}_{edge} as {event_type}", found, other[0].line)
