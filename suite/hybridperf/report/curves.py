"""Draw learning curves: one panel per result, on common axes, with all others in the back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from hybridperf.report.svg import Scale, element, fixed, tick_text

if TYPE_CHECKING:
    from hybridperf.report.board import Board
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore

__all__ = ["Axes", "curve_axes", "draw_backdrop", "draw_panel"]

WIDTH_PX: Final = 300
HEIGHT_PX: Final = 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 38.0, WIDTH_PX - 12.0, 22.0, HEIGHT_PX - 34.0


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes shared by all panels of a leaderboard."""

    time: Scale
    quality: Scale
    target: float | None
    metric: str


def curve_axes(board: Board) -> Axes:
    """Return axes that cover every evaluation of every valid result."""
    points = [point for run in _runs(board) for point in run.curve]
    goal = [] if board.target is None else [board.target]
    times = [0.0, *(point.time_s for point in points)]
    qualities = [*(point.quality for point in points), *goal]
    return Axes(
        time=Scale.around(times, start=_LEFT, stop=_RIGHT, most_ticks=10),
        quality=Scale.around(qualities, start=_BOTTOM, stop=_TOP, most_ticks=10),
        target=board.target,
        metric=board.metric,
    )


def draw_backdrop(board: Board, axes: Axes, *, name: str) -> Markup:
    """Return an SVG definition of all curves of the leaderboard, with the id ``name``."""
    curves = [_path(run, axes) for run in _runs(board)]
    group = element("g", *curves, id=name, class_="backdrop")
    return element("svg", element("defs", group), class_="definitions", aria_hidden="true")


def draw_panel(score: ResultScore, axes: Axes, *, backdrop: str) -> Markup:
    """Return the panel of one result as SVG, in front of the curves with the id ``backdrop``."""
    runs = [_run(run, axes) for run in score.runs]
    label = f"{axes.metric} over seconds since run_start, {len(score.runs)} runs"
    return element(
        "svg",
        *_frame(axes),
        element("use", href=f"#{backdrop}"),
        *_target(axes),
        *runs,
        class_="panel",
        viewBox=f"0 0 {WIDTH_PX} {HEIGHT_PX}",
        role="img",
        aria_label=label,
    )


def _runs(board: Board) -> list[RunScore]:
    return [run for row in board.rows for run in row.entry.score.runs]


def _run(run: RunScore, axes: Axes) -> Markup:
    parts = [element("title", f"run {run.number}, {run.outcome}"), _path(run, axes)]
    if run.curve:
        last = run.curve[-1]
        x, y = axes.time.at(last.time_s), axes.quality.at(last.quality)
        parts.append(element("circle", class_="end", cx=x, cy=y, r=2.5))
    return element("g", *parts, class_=f"run {run.completion}")


def _path(run: RunScore, axes: Axes) -> Markup:
    places = (
        f"{fixed(axes.time.at(point.time_s))} {fixed(axes.quality.at(point.quality))}"
        for point in run.curve
    )
    line = "L".join(places)
    return element("path", d=f"M{line}") if line else Markup("")


def _target(axes: Axes) -> list[Markup]:
    if axes.target is None or not math.isfinite(axes.target):
        return []
    y = axes.quality.at(axes.target)
    line = element("line", class_="target", x1=_LEFT, x2=_RIGHT, y1=y, y2=y)
    return [line, element("text", f"target {axes.target:g}", class_="label", x=_LEFT + 4, y=y + 11)]


def _frame(axes: Axes) -> list[Markup]:
    qualities, times = axes.quality.ticks(4), axes.time.ticks(5)
    parts = [element("text", axes.metric, class_="label strong", x=4, y=11)]
    for tick in qualities:
        y = axes.quality.at(tick)
        text = tick_text(tick, qualities)
        parts.append(element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=y, y2=y))
        parts.append(element("text", text, class_="label right", x=_LEFT - 5, y=y + 4))
    parts.append(element("line", class_="axis", x1=_LEFT, x2=_RIGHT, y1=_BOTTOM, y2=_BOTTOM))
    for tick in times:
        x = axes.time.at(tick)
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=_BOTTOM, y2=_BOTTOM + 4))
        text = tick_text(tick, times)
        parts.append(element("text", text, class_="label centred", x=x, y=_BOTTOM + 15))
    name = "seconds since run_start"
    parts.append(element("text", name, class_="label strong end", x=_RIGHT, y=_BOTTOM + 29))
    return parts
