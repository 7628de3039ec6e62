"""Evaluations in published logs, also those whose metrics are logged apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridperf.log.log import Entry

if TYPE_CHECKING:
    from hybridperf.log.log import Log

__all__ = ["Join", "joined_evaluations"]


@dataclass(frozen=True, slots=True)
class Join:
    """Evaluations of several metrics that are logged apart, and judged as one."""

    key: str  #: of the lines
    name: str  #: metadata that names the metric
    by: str  #: metadata that is equal in lines of one evaluation
    into: str  #: key of the joined lines, whose value has ``by`` and each metric


def joined_evaluations(log: Log, join: Join) -> tuple[list[Entry], list[Entry]]:
    """Return one entry for each evaluation, and the lines that belong to none."""
    at: dict[Any, Entry] = {}
    left_out: list[Entry] = []
    for entry in log.all(join.key):
        if join.name not in entry.metadata:
            continue
        point, metric = entry.metadata.get(join.by), entry.metadata[join.name]
        placed = join.by in entry.metadata and not isinstance(point, dict | list)
        if not placed or not isinstance(metric, str):
            left_out.append(entry)
            continue
        values: dict[str, object] = {join.by: point}
        metadata = {join.by: point}
        one = at.setdefault(
            point, Entry(join.into, entry.time_ms, "", values, metadata, entry.line)
        )
        one.time_ms = max(one.time_ms, entry.time_ms)
        one.value[metric] = entry.value  # type: ignore[index]  # the dictionary above
    return list(at.values()), left_out
