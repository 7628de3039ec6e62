"""Draw how a metric of MLPerf's results changed over the rounds, a named line an accelerator."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.report.svg import Scale, element, fixed, picture
from hybridperf.score.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from markupsafe import Markup

    from hybridperf.score.official import Official

__all__ = ["draw_trend"]

_SIZE_PX: Final = (960, 290)
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 56.0, 780.0, 30.0, 258.0
_LETTER_PX: Final = 6.2  #: mean width of a character of a name
_NAME_PX: Final = 13.0  #: height of a name
_MOST_LETTERS: Final = 26
_COLOURS: Final = 6


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
    filled = [box for points in places.values() for box in _boxes(points)]
    # The latest names are the ones that people look for, so they have the first choice of a place.
    in_order = sorted(places, key=lambda name: (-places[name][-1][0], places[name][-1][1]))
    for nth, name in enumerate(in_order):
        parts += _line(name, places[name], lines[name], nth % _COLOURS, filled)
    label = f"{heading}, by round: {', '.join(in_order)}; the table below has the numbers"
    return picture("trend", _SIZE_PX, *parts, label=label, fluid=True)


def _line(
    name: str,
    points: Sequence[tuple[float, float]],
    line: Mapping[str, Official],
    colour: int,
    filled: list[_Box],
) -> Iterator[Markup]:
    drawn = " ".join(f"{fixed(x)},{fixed(y)}" for x, y in points)
    yield element("polyline", class_=f"line colour{colour}", points=drawn)
    for (x, y), result in zip(points, line.values(), strict=True):
        title = element("title", f"{result.score.org}, {result.system_name or result.score.system}")
        yield element("circle", title, class_=f"point colour{colour}", cx=x, cy=y, r=3.5)
    short = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"
    x, y = points[-1]
    box = _free_box(x + 8, y, len(short) * _LETTER_PX, filled)
    filled.append(box)
    yield element(
        "text", short, class_=f"name colour{colour}", x=box.left, y=box.bottom - _NAME_PX / 2 + 4
    )


def _boxes(points: Sequence[tuple[float, float]]) -> Iterator[_Box]:
    """Yield boxes around the points of a line, and small ones along the line."""
    yield from (_Box(x - 4, x + 4, y - 4, y + 4) for x, y in points)
    for (left, start), (right, stop) in itertools.pairwise(points):
        for nth in range(steps := math.ceil((right - left) / _NAME_PX)):
            x, y = (one + (other - one) * nth / steps for one, other in ((left, right), (start, stop)))
            yield _Box(x - 1, x + 1, y - 1, y + 1)


def _free_box(left: float, y: float, width: float, filled: Sequence[_Box]) -> _Box:
    """Return the place for a name that is nearest to ``y`` and free, or else at ``y``."""
    offsets = (sign * 4.0 * nth for nth in range(12) for sign in (1, -1))
    boxes = (
        _Box(left, left + width, y + offset - _NAME_PX / 2, y + offset + _NAME_PX / 2)
        for offset in itertools.chain(offsets, (0.0,))
    )
    inside = (box for box in boxes if box.top >= 16 and box.bottom <= _BOTTOM_PX + 4)
    free = (box for box in inside if not any(map(box.meets, filled)))
    return next(free, _Box(left, left + width, y - _NAME_PX / 2, y + _NAME_PX / 2))


def _grid(vertical: Scale) -> Iterator[Markup]:
    low, high = math.exp(vertical.low), math.exp(vertical.high)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [10.0**power * factor for power in powers for factor in (1, 2, 5)]
    for tick in (tick for tick in ticks if low <= tick <= high):
        y = vertical.at(math.log(tick))
        yield element("line", class_="grid", x1=_LEFT_PX, x2=_RIGHT_PX, y1=y, y2=y)
        yield element("text", f"{tick:,g}", class_="tick right", x=_LEFT_PX - 6, y=y + 4)


def _figure(metric: str, result: Official) -> float:
    value = METRICS[metric].source(result)
    assert isinstance(value, float), f"{metric} of a ranked result is a number"
    return value
