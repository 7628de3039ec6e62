"""Draw the runs of a result as dots, and a benchmark's best times over the rounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from hybridperf.report.svg import Scale, element, fixed
from hybridperf.score.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.report.site.model import BenchmarkPage
    from hybridperf.score.official import Official

__all__ = ["dots_scale", "draw_dots", "draw_history"]

_WIDTH_PX: Final = 180
_HEIGHT_PX: Final = 22
_MISSED_PX: Final = _WIDTH_PX - 5.0  #: position of runs without a time
_LEAST, _MOST = 1.02, 2.0  #: ratios to the mean at the ends of the axis
_CHART_PX: Final = (760, 260)
_LEFT_PX: Final = 40
_TOP_PX: Final = 28


def dots_scale(results: Iterable[Official]) -> Scale:
    """Return a common logarithmic axis for the times of ``results`` over their olympic means."""
    values = [
        abs(math.log(time_s / mean_s))
        for result in results
        if (mean_s := _mean_s(result)) is not None
        for run in result.score.completed
        if 0 < (time_s := run.time_to_train_s) < math.inf
    ]
    most = min(max([*values, math.log(_LEAST)]), math.log(_MOST))
    return Scale(-most, most, 5, _WIDTH_PX - 20)


def draw_dots(result: Official, scale: Scale) -> Markup:
    """Return SVG with a dot for every run, a bar for the 95 % interval and a line for the mean.

    "" for a result without an olympic mean.
    """
    score, middle, mean_s = result.score, _HEIGHT_PX / 2, _mean_s(result)
    if mean_s is None:
        return Markup("")
    parts = []
    if score.interval_s is not None and score.interval_s.low > 0:
        left = _at(score.interval_s.low / mean_s, scale)
        width = max(_at(score.interval_s.high / mean_s, scale) - left, 1.0)
        parts.append(element("rect", class_="band", x=left, y=4, width=width, height=14))
    x = scale.at(0)
    parts.append(element("line", class_="mean", x1=x, x2=x, y1=2, y2=_HEIGHT_PX - 2))
    for counts in (True, False):
        runs = [run for run in score.completed if run.counts is counts]
        points = (
            _at(run.time_to_train_s / mean_s, scale)
            if 0 < run.time_to_train_s < math.inf
            else _MISSED_PX
            for run in runs
        )
        # One path of zero-length lines with round ends is a tenth of the size of circles.
        path = "".join(f"M{fixed(x)} {fixed(middle)}h0" for x in points)
        if path:
            parts.append(element("path", class_="counts" if counts else "dropped", d=path))
    return element(
        "svg",
        *parts,
        class_="dots",
        viewBox=f"0 0 {_WIDTH_PX} {_HEIGHT_PX}",
        width=_WIDTH_PX,
        height=_HEIGHT_PX,
        aria_hidden="true",
    )


def draw_history(page: BenchmarkPage) -> Markup:
    """Return SVG of the fastest time of every submitter by round, and of the fastest of all."""
    width, height = _CHART_PX
    found = [row.best for row in page.by_submitter]
    times = [math.log(each.minutes) for row in found for each in row.values() if each.minutes]
    low, high = min(times), max(times)
    vertical = Scale(low, max(high, low + 0.1), height - 45, _TOP_PX)
    step = (width - 2 * _LEFT_PX) / max(len(page.editions) - 1, 1)
    across = {edition: _LEFT_PX + step * nth for nth, edition in enumerate(page.editions)}
    parts = [
        element("text", f"v{edition}", class_="label", x=x, y=height - 8)
        for edition, x in across.items()
    ]
    for row in page.by_submitter:
        points = [
            (across[at], _up(each, vertical))
            for at, each in sorted(row.best.items(), key=lambda item: across[item[0]])
        ]
        line = " ".join(f"{fixed(x)},{fixed(y)}" for x, y in points)
        parts.append(element("polyline", class_="maker", points=line))
        parts += [
            element("circle", element("title", row.name), class_="maker", cx=x, cy=y, r=3)
            for x, y in points
        ]
    best = [(across[at], _up(page.best[at], vertical), page.best[at]) for at in page.editions]
    line = " ".join(f"{fixed(x)},{fixed(y)}" for x, y, _ in best)
    parts.append(element("polyline", class_="best", points=line))
    for x, y, result in best:
        text = METRICS["official_minutes"].text(result)
        parts.append(element("circle", class_="best", cx=x, cy=y, r=4))
        parts.append(
            element("text", text, class_="value", x=x, y=y + 17, data_c="official_minutes")
        )
    return element(
        "svg",
        *parts,
        class_="history",
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=f"Best times of {page.name} by round; the table below holds them",
    )


def _mean_s(result: Official) -> float | None:
    mean_s = result.score.olympic_mean_s
    return mean_s if mean_s and math.isfinite(mean_s) else None


def _at(ratio: float, scale: Scale) -> float:
    return scale.at(math.log(ratio)) if math.isfinite(ratio) else scale.stop


def _up(result: Official, scale: Scale) -> float:
    return scale.at(math.log(result.minutes or 1.0))
