"""What happened when on the boards: history, Atom feed, and a badge for each task.

Dates are those in the logs and in ``withdrawn.toml``, so that every machine writes the same bytes.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
import uuid
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.report.svg import element
from hybridperf.report.tables import seconds
from hybridperf.rules.withdrawal import read_withdrawals
from hybridperf.tasks.registry import task_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from hybridperf.report.board import Board
    from hybridperf.report.judgement import JudgedResult

__all__ = ["Event", "badges", "history", "leaderboard_feed"]

_LATEST: Final = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)  #: a bound on dates in untrusted logs
_ATOM: Final = "http://www.w3.org/2005/Atom"  # RFC 4287
_MOST_ENTRIES: Final = 200  #: of the feed, the latest ones
_CHARACTER_PX: Final = 6.6  #: of the badge's font, on average
_BADGE_PX: Final = 20
_LABEL_FILL, _VALUE_FILL = "#454545", "#0b6b3a"  # white text on them has a contrast above 6


@dataclass(frozen=True, slots=True)
class Event:
    """A result that was made, superseded or withdrawn."""

    date: dt.datetime  #: of the end of the last run, or of the withdrawal
    what: str  #: ``record``, ``result``, ``superseded`` or ``withdrawn``
    entry: JudgedResult
    words: str

    @property
    def id(self) -> str:
        """Return a stable and unique IRI."""
        return uuid.uuid5(uuid.NAMESPACE_OID, f"hybridperf {self.entry.anchor} {self.what}").urn


def history(boards: Sequence[Board]) -> list[Event]:
    """Return all events on ``boards``, the latest first."""
    events = [event for board in boards for event in _events(board)]
    return sorted(events, key=lambda each: (each.date, each.entry.anchor), reverse=True)


def _events(board: Board) -> Iterator[Event]:
    """Yield the events of a board: results in the order of their dates, then withdrawals."""
    dated = [(date, row.entry) for row in board.rows if (date := _end_of(row.entry))]
    record_s = math.inf
    for date, entry in sorted(dated, key=lambda each: (each[0], each[1].anchor)):
        mean_s = entry.score.mean_s
        if mean_s is None or entry.standing not in {"ranked", "superseded", "withdrawn"}:
            yield Event(date, "result", entry, entry.standing)
        elif entry.standing == "ranked" and mean_s < record_s:
            record, record_s = record_s < math.inf, mean_s
            words = f"{seconds(mean_s)} s, the fastest so far"
            yield Event(date, "record" if record else "result", entry, words)
        else:
            yield Event(date, "result", entry, f"{seconds(mean_s)} s")
    for row in board.rows:
        package = row.entry.result.package
        if withdrawal := read_withdrawals(package.root).get(package.folder):
            date = dt.datetime.combine(withdrawal.date, dt.time(), dt.UTC)
            yield Event(date, withdrawal.judgement.value, row.entry, withdrawal.words)


def _end_of(entry: JudgedResult) -> dt.datetime | None:
    """Return when the last run ended; None if the logs have no date that can be."""
    runs = [run for run in entry.score.runs if run.began_ms > 0]
    ended_s = max((run.began_ms / 1000 + run.elapsed_s for run in runs), default=0.0)
    if not 0 < ended_s < _LATEST.timestamp():
        return None
    return dt.datetime.fromtimestamp(int(ended_s), dt.UTC)


def leaderboard_feed(boards: Sequence[Board]) -> str:
    """Return the latest events as an Atom feed (RFC 4287), whose links are relative to it."""
    events = history(boards)
    root = ET.Element("feed", xmlns=_ATOM)
    first = events[-1].id if events else ""
    updated = max((event.date for event in events), default=dt.datetime.fromtimestamp(0, dt.UTC))
    _add(root, "id", uuid.uuid5(uuid.NAMESPACE_OID, f"hybridperf feed {first}").urn)
    _add(root, "title", "HybridPerf leaderboard")
    _add(root, "updated", updated.isoformat())
    ET.SubElement(root, "link", rel="alternate", href="index.html")
    for event in events[:_MOST_ENTRIES]:
        score = event.entry.score
        child = ET.SubElement(root, "entry")
        plan = f" under {score.plan}" if score.plan else ""
        _add(child, "id", event.id)
        _add(child, "title", f"{event.entry.benchmark}, {score.system}{plan}: {event.words}")
        _add(child, "updated", event.date.isoformat())
        _add(ET.SubElement(child, "author"), "name", score.org or "unknown")
        ET.SubElement(child, "link", rel="alternate", href=f"index.html#{event.entry.anchor}")
        ET.SubElement(child, "category", term=event.what)
        _add(child, "summary", f"{event.entry.official.division} division, {event.words}")
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="us-ascii", xml_declaration=True)
    return text.decode() + "\n"


def _add(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = visible(text)


def badges(boards: Sequence[Board]) -> dict[str, str]:
    """Return an SVG badge for each task by file name: time and plan of the fastest result.

    The result is of the closed division where one has a place there, and of the latest version.
    """
    best: dict[str, Board] = {}
    for board in sorted(boards, key=lambda each: (each.division != "closed", each.version)):
        ranked = bool(board.rows and board.rows[0].entry.official.place)
        before = best.get(board.benchmark)
        if ranked and (before is None or before.division == board.division):
            best[board.benchmark] = board
    return {_badge_name(task): _badge(task, best[task].rows[0].entry) for task in sorted(best)}


def _badge_name(task: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")[:60]
    if task not in task_names():  # a user's task takes the name of no other
        words += f"-{hashlib.sha256(task.encode(errors='surrogateescape')).hexdigest()[:8]}"
    return f"badge_{words}.svg"


def _badge(task: str, entry: JudgedResult) -> str:
    score = entry.score
    value = f"{seconds(score.mean_s)} s, {score.plan or score.system}"
    label, value = visible(task)[:60], visible(value)[:80]
    widths = [round(len(text) * _CHARACTER_PX) + 12 for text in (label, value)]
    parts: list[Markup] = []
    left = 0
    for text, width, fill in zip((label, value), widths, (_LABEL_FILL, _VALUE_FILL), strict=True):
        parts.append(element("rect", x=left, y=0, width=width, height=_BADGE_PX, fill=fill))
        parts.append(element("text", text, x=left + 6, y=14, fill="#fff", textLength=width - 12))
        left += width
    return element(
        "svg",
        element("title", f"{label}: {value}"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        width=left,
        height=_BADGE_PX,
        role="img",
        font_family="Verdana,DejaVu Sans,sans-serif",
        font_size=11,
    )
