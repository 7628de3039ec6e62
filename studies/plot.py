"""Draw charts as SVG for the pages of the studies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hybridperf.report.svg import Scale, element, tick_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from markupsafe import Markup

__all__ = ["interval_chart", "line_chart"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 820, 380, 60, 330, 18, 44
_COLORS: Final = ("#1b6ca8", "#c8553d", "#2e8b57", "#8e5ea2", "#d99000", "#555555", "#00a0a0")


def line_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]], *, x_label: str, y_label: str
) -> str:
    """Return an SVG document with one line of (x, y) points a name, both axes logarithmic."""
    xs = sorted({x for line in lines.values() for x, _ in line})
    ys = [y for line in lines.values() for _, y in line]
    x_at = _log_scale(xs[0], xs[-1], _LEFT, _WIDTH - _RIGHT)
    low, high = 10 ** math.floor(math.log10(min(ys))), 10 ** math.ceil(math.log10(max(ys)))
    y_at = _log_scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    parts = [element("rect", width=_WIDTH, height=_HEIGHT, fill="white")]
    parts += [_text(f"{x:,.0f}", x_at(x), _HEIGHT - _BOTTOM + 18, "middle") for x in xs]
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        y = y_at(10.0**power)
        right = _WIDTH - _RIGHT
        parts.append(element("line", x1=_LEFT, x2=right, y1=y, y2=y, stroke="#dddddd"))
        parts.append(_text(f"{10.0**power:,g}", _LEFT - 6, y + 4, "end"))
    for number, (name, line) in enumerate(lines.items()):
        stroke = {
            "stroke": _COLORS[number % len(_COLORS)],
            "stroke_width": 2,
            "stroke_dasharray": "none" if number < len(_COLORS) else "5 3",
        }
        points = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in line)
        parts.append(element("polyline", points=points, fill="none", **stroke))
        row = _TOP + 12 + 20 * number
        left = _WIDTH - _RIGHT + 20
        parts.append(element("line", x1=left, x2=left + 18, y1=row - 4, y2=row - 4, **stroke))
        parts.append(_text(name, left + 24, row, "start"))
    parts.append(_text(x_label, (_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "middle"))
    parts.append(_text(y_label, _LEFT, _TOP - 4, "start"))
    return _document(parts, _HEIGHT)


def interval_chart(rows: Sequence[tuple[str, float, float, float]], *, x_label: str) -> str:
    """Return an SVG document with a row for each (name, low, middle, high); a line marks x = 1."""
    height = _TOP + 20 * len(rows) + _BOTTOM
    scale = Scale.around(
        [1.0, *(value for _, *values in rows for value in values)],
        start=_RIGHT + 10,
        stop=_WIDTH - 20,
        most_ticks=8,
    )
    ticks = scale.ticks(8)
    parts = [element("rect", width=_WIDTH, height=height, fill="white")]
    for tick in ticks:
        x, color = scale.at(tick), "#888888" if tick == 1 else "#e4e4e4"
        bottom = height - _BOTTOM
        parts.append(element("line", x1=x, x2=x, y1=_TOP, y2=bottom, stroke=color))
        parts.append(_text(tick_text(tick, ticks), x, bottom + 16, "middle"))
    for number, (name, low, middle, high) in enumerate(rows):
        y = _TOP + 20 * number + 10
        bar = {"x1": scale.at(low), "x2": scale.at(high), "y1": y, "y2": y}
        parts.append(_text(name, _RIGHT, y + 4, "end"))
        parts.append(element("line", **bar, stroke=_COLORS[0], stroke_width=2))
        parts.append(element("circle", cx=scale.at(middle), cy=y, r=4, fill=_COLORS[0]))
    parts.append(_text(x_label, _RIGHT + 10, height - 10, "start"))
    return _document(parts, height)


def _document(parts: Sequence[Markup], height: float) -> str:
    box = f"0 0 {_WIDTH} {height:g}"
    return str(element("svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=box, role="img"))


def _log_scale(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    span = math.log(high / low)
    return lambda value: start + (stop - start) * math.log(value / low) / span


def _text(text: str, x: float, y: float, anchor: str) -> Markup:
    return element(
        "text", text, x=x, y=y, text_anchor=anchor, font_size=12, font_family="sans-serif"
    )
