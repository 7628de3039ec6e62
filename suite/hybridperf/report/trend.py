"""Draw how a metric of MLPerf's results changed over the rounds, a named line an accelerator."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.report.svg import Scale, element, fixed, picture
from hybridperf.score.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from markupsafe import Markup

    from hybridperf.score.official import Official

__all__ = ["draw_trend"]

_SIZE_PX: Final = (960, 290)
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 56.0, 710.0, 30.0, 258.0
_LETTER_PX: Final = 6.2  #: mean width of a character of a name
_NAME_PX: Final = 13.0  #: height of a name
_LEADER_PX: Final = 28.0  #: from the last round to the names on the right
_MOST_LETTERS: Final = 34
_COLOURS: Final = 6
_FEWEST_TICKS: Final = 3

_Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Box:
    """A part of the picture that a name would hide, or that another name fills."""

    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom


def draw_trend(
    metric: str, lines: Mapping[str, Mapping[str, Official]], editions: Sequence[str]
) -> Markup:
    """Return SVG with a line a name: its result's ``metric`` by round, on a logarithmic axis.

    ``lines`` has results by round, by name; ``editions`` are the rounds in order.
    """
    logs = [math.log(_figure(metric, each)) for line in lines.values() for each in line.values()]
    low, high = min(logs), max(logs)
    margin = max((high - low) * 0.06, 0.1)
    vertical = Scale(low - margin, high + margin, _BOTTOM_PX, _TOP_PX)
    step = (_RIGHT_PX - _LEFT_PX - 20) / max(len(editions) - 1, 1)
    across = {edition: _LEFT_PX + 10 + step * nth for nth, edition in enumerate(editions)}
    heading = f"{METRICS[metric].heading}, {METRICS[metric].unit}"
    parts = [
        element("text", heading, class_="strong", x=0, y=14),
        *_grid(vertical),
        *(
            element("text", f"v{edition}", class_="centred", x=x, y=_BOTTOM_PX + 18)
            for edition, x in across.items()
        ),
    ]
    places = {
        name: [
            (across[edition], vertical.at(math.log(_figure(metric, line[edition]))))
            for edition in editions
            if edition in line
        ]
        for name, line in lines.items()
    }
    current = sorted(
        (name for name, points in places.items() if points[-1][0] == across[editions[-1]]),
        key=lambda name: places[name][-1][1],
    )
    ended = [name for name in places if name not in current]
    filled = [box for points in places.values() for box in _boxes(points)]
    boxes = _boxes_on_the_right(current, [places[name][-1][1] for name in current])
    filled += boxes.values()
    for name in ended:
        boxes[name] = _free_box(name, *places[name][-1], filled)
        filled.append(boxes[name])
    for nth, name in enumerate([*current, *ended]):
        parts += _line(name, places[name], lines[name], f"colour{nth % _COLOURS}", boxes[name])
    label = f"{heading}, by round: {', '.join(boxes)}; the table below has the numbers"
    return picture("trend", _SIZE_PX, *parts, label=label, fluid=True)


def _line(
    name: str,
    points: Sequence[_Point],
    line: Mapping[str, Official],
    colour: str,
    box: _Box,
) -> Iterator[Markup]:
    drawn = " ".join(f"{fixed(x)},{fixed(y)}" for x, y in points)
    yield element("polyline", class_=f"line {colour}", points=drawn)
    # Results are by round, newest first, and points from left to right.
    for (x, y), result in zip(points, reversed([*line.values()]), strict=True):
        title = element("title", f"{result.score.org}, {result.system_name or result.score.system}")
        yield element("circle", title, class_=f"point {colour}", cx=x, cy=y, r=3.5)
    (x, y), middle = points[-1], (box.top + box.bottom) / 2
    if box.left > x + _LEADER_PX / 2:
        yield element("line", class_=f"leader {colour}", x1=x + 6, y1=y, x2=box.left - 3, y2=middle)
    yield element("text", _short(name), class_=f"name {colour}", x=box.left, y=middle + 4)


def _short(name: str) -> str:
    name = visible(name)
    if len(name) <= _MOST_LETTERS:
        return name
    half = _MOST_LETTERS // 2
    return f"{name[:half]}…{name[1 - half :]}"


def _boxes_on_the_right(names: Sequence[str], places: Sequence[float]) -> dict[str, _Box]:
    """Return a place right of the last round for each name, near its height and in their order."""
    middles = list(places)
    for at in range(1, len(middles)):
        middles[at] = max(middles[at], middles[at - 1] + _NAME_PX)
    lowest = _SIZE_PX[1] - _NAME_PX
    for at in reversed(range(len(middles))):
        middles[at] = min(middles[at], lowest)
        lowest = middles[at] - _NAME_PX
    left = _RIGHT_PX + _LEADER_PX
    return {
        name: _Box(left, _SIZE_PX[0], middle - _NAME_PX / 2, middle + _NAME_PX / 2)
        for name, middle in zip(names, middles, strict=True)
    }


def _boxes(points: Sequence[tuple[float, float]]) -> Iterator[_Box]:
    """Yield boxes around the points of a line, and small ones along the line."""
    yield from (_Box(x - 4, x + 4, y - 4, y + 4) for x, y in points)
    for (left, start), (right, stop) in itertools.pairwise(points):
        for nth in range(steps := math.ceil((right - left) / _NAME_PX)):
            x, y = (
                one + (other - one) * nth / steps for one, other in ((left, right), (start, stop))
            )
            yield _Box(x - 1, x + 1, y - 1, y + 1)


def _free_box(name: str, x: float, y: float, filled: Sequence[_Box]) -> _Box:
    """Return the free place right of a point that is nearest to it, or else beside it."""
    left, right = x + 8, x + 8 + len(_short(name)) * _LETTER_PX
    boxes = [
        _Box(left, right, y + offset - _NAME_PX / 2, y + offset + _NAME_PX / 2)
        for offset in (sign * 4.0 * nth for nth in range(12) for sign in (1, -1))
    ]
    inside = (box for box in boxes if box.top >= _TOP_PX - 14 and box.bottom <= _BOTTOM_PX + 4)
    return next((box for box in inside if not any(map(box.meets, filled))), boxes[0])


def _grid(vertical: Scale) -> Iterator[Markup]:
    low, high = math.exp(vertical.low), math.exp(vertical.high)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [10.0**power * factor for power in powers for factor in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) < _FEWEST_TICKS:
        ticks = Scale(low, high, 0, 1).ticks(2 * _FEWEST_TICKS)
    for tick in ticks:
        y = vertical.at(math.log(tick))
        yield element("line", class_="grid", x1=_LEFT_PX, x2=_RIGHT_PX, y1=y, y2=y)
        yield element("text", f"{tick:,g}", class_="tick right", x=_LEFT_PX - 6, y=y + 4)


def _figure(metric: str, result: Official) -> float:
    value = METRICS[metric].source(result)
    assert isinstance(value, float), f"{metric} of a ranked result is a number"
    return value
