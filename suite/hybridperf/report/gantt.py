"""Draw when the ranks of a pipeline did what in a step, as bars over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from markupsafe import Markup

from hybridperf.log import keys
from hybridperf.report.svg import Scale, element, tick_text
from hybridperf.untrusted import number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.log.log import Entry
    from hybridperf.log.package import Result

__all__ = ["Bar", "draw_timelines", "read_timeline", "timelines_of"]

_KINDS: Final = {  # of actions, with their classes in the page's style
    "forward": "forward",
    "backward": "backward",
    "backward of inputs": "backward",
    "backward of weights": "weights",
    "update": "update",
}
_MOST_BARS: Final = 2_000
_MOST_RANKS: Final = 64
_LONGEST_S: Final = 1e6
_WIDTH_PX: Final = 720
_LEFT_PX: Final = 90
_ROW_PX: Final = 16
_TICKS: Final = 7


class Bar(NamedTuple):
    """One action of a rank."""

    kind: str
    step: int
    stage: int
    microbatch: int
    start_s: float
    stop_s: float


Timeline = list[list[Bar]]  # by rank of the pipeline


def timelines_of(result: Result) -> list[tuple[str, Timeline]]:
    """Return the projected and the measured timeline of the first run that states both.

    If none does, the measured one alone of the first run that states it.
    """
    found: list[tuple[str, Timeline]] = []
    for run in result.runs:
        if measured := _timeline_in(run.log.all(keys.TRACKED_STATS)):
            named = [(f"measured, run {run.number}", measured)]
            if projected := _timeline_in(run.log.all(keys.PROJECTION)):
                return [("projected", projected), *named]
            found = found or named
    return found


def _timeline_in(entries: Iterable[Entry]) -> Timeline:
    """Return the first timeline that ``entries`` state; empty if there is none."""
    for entry in entries:
        if isinstance(entry.value, dict) and "timeline" in entry.value:
            return read_timeline(entry.value["timeline"])
    return []


def read_timeline(value: object) -> Timeline:
    """Return the timeline in ``value``, of unknown origin; empty if anything in it is wrong."""
    if not isinstance(value, list) or len(value) > _MOST_RANKS:
        return []
    ranks = [_bars(rank.get("actions")) if isinstance(rank, dict) else None for rank in value]
    read = [rank for rank in ranks if rank is not None]
    if len(read) < len(ranks) or not 0 < sum(map(len, read)) <= _MOST_BARS:
        return []
    return read


def _bars(value: object) -> list[Bar] | None:
    if not isinstance(value, list):
        return None
    bars = []
    for each in value:
        if not isinstance(each, list) or len(each) != len(Bar._fields) or each[0] not in _KINDS:
            return None
        where = [whole(part) for part in each[1:4]]
        times = [number(part, 0, _LONGEST_S) for part in each[4:]]
        if None in where or None in times or times[1] < times[0]:  # type: ignore[operator]  # both known
            return None
        bars.append(Bar(each[0], *where, *times))  # type: ignore[arg-type]  # none is None
    return bars


def draw_timelines(timelines: Sequence[tuple[str, Timeline]]) -> Markup:
    """Return SVG of named ``timelines`` below each other, on one axis of milliseconds."""
    stop_s = max(bar.stop_s for _, ranks in timelines for rank in ranks for bar in rank)
    scale = Scale.around(
        [0.0, stop_s * 1e3], start=_LEFT_PX, stop=_WIDTH_PX - 30, most_ticks=_TICKS
    )
    parts, top = list[Markup](), 14
    for name, ranks in timelines:
        parts.append(element("text", name, class_="label strong", x=0, y=top))
        for rank, bars in enumerate(ranks):
            row = top + 6 + rank * _ROW_PX
            parts.append(element("text", f"rank {rank}", class_="label", x=0, y=row + 11))
            parts += (_drawn(bar, scale, row) for bar in bars)
        top += 6 + len(ranks) * _ROW_PX + 22
    ticks = scale.ticks(_TICKS)
    for tick in ticks:
        x = scale.at(tick)
        label = f"{tick_text(tick, ticks)} ms"
        parts.append(element("text", label, class_="label centred", x=x, y=top - 2))
    return element(
        "svg",
        *parts,
        class_="timeline",
        viewBox=f"0 0 {_WIDTH_PX} {top + 6}",
        width=_WIDTH_PX,
        height=top + 6,
        role="img",
        aria_label="; ".join(" ".join(_words(name, ranks)) for name, ranks in timelines),
    )


def _drawn(bar: Bar, scale: Scale, top: float) -> Markup:
    start, stop = scale.at(bar.start_s * 1e3), scale.at(bar.stop_s * 1e3)
    took_ms = (bar.stop_s - bar.start_s) * 1e3
    words = f"{bar.kind}, step {bar.step}, stage {bar.stage}"
    words += "" if bar.kind == "update" else f", micro-batch {bar.microbatch}"
    return element(
        "rect",
        element("title", f"{words}: {took_ms:.2f} ms"),
        class_=f"action {_KINDS[bar.kind]}",
        x=start,
        y=top,
        width=max(stop - start, 0.5),
        height=_ROW_PX - 3,
    )


def _words(name: str, ranks: Timeline) -> Iterator[str]:
    """Yield what a timeline shows, for readers who do not see it."""
    bars = [bar for rank in ranks for bar in rank]
    span_s = max(bar.stop_s for bar in bars) - min(bar.start_s for bar in bars)
    busy_s = math.fsum(bar.stop_s - bar.start_s for bar in bars)
    yield f"{name}: {len(ranks)} ranks, {span_s * 1e3:.1f} ms,"
    yield f"idle for {1 - busy_s / (span_s * len(ranks)) if span_s else 0:.0%} of it"
