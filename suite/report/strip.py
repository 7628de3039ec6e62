"""A result's runs as dots on the time axis of its board."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from suite.report.figures import seconds, seconds_range
from suite.report.svg import Scale, element, tick_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markupsafe import Markup

    from suite.scores.run_score import RunScore
    from suite.scores.score import ResultScore

__all__ = ["draw_axis", "draw_strip", "strip_scale"]

WIDTH_PX: Final = 300
HEIGHT_PX: Final = 34
_MIDDLE_PX: Final = HEIGHT_PX / 2
_AXIS_PX: Final = 20
_MISSED_PX: Final = WIDTH_PX - 8.0  #: where runs stand that have no time
_TICKS: Final = 7


def strip_scale(scores: Iterable[ResultScore]) -> Scale:
    """Return the time axis that all of ``scores`` share."""
    values: list[float] = []
    for score in scores:
        values += [run.time_to_train_s for run in score.completed]
        if score.interval_s is not None:
            values += [score.interval_s.low, score.interval_s.high]
    return Scale.around(values, start=10, stop=WIDTH_PX - 28, most_ticks=12)


def draw_axis(scale: Scale) -> Markup:
    """Return the tick labels, to stand above the strips."""
    ticks = scale.ticks(_TICKS)
    labels = [
        element("text", tick_text(tick, ticks), x=scale.at(tick), y=14, class_="label centred")
        for tick in ticks
    ]
    return _picture(_AXIS_PX, *labels, aria_hidden="true")


def draw_strip(score: ResultScore, scale: Scale) -> Markup:
    """Return one dot for each completed run, the mean as a tick and its interval as a band."""
    parts = [_upright("grid", scale.at(tick), 0, HEIGHT_PX) for tick in scale.ticks(_TICKS)]
    if score.interval_s is not None:
        left, right = scale.at(score.interval_s.low), scale.at(score.interval_s.high)
        parts.append(
            element("rect", class_="band", x=left, y=9, width=max(right - left, 1.0), height=16)
        )
    if score.olympic_mean_s is not None and math.isfinite(score.olympic_mean_s):
        parts.append(_upright("mean", scale.at(score.olympic_mean_s), 5, HEIGHT_PX - 5))
    # Dropped runs are drawn last: hollow, they hide nothing.
    parts += [_dot(run, scale) for run in sorted(score.completed, key=lambda run: not run.counts)]
    return _picture(HEIGHT_PX, *parts, role="img", aria_label=_words(score))


def _dot(run: RunScore, scale: Scale) -> Markup:
    reached = math.isfinite(run.time_to_train_s)
    title = f"run {run.number}: {seconds(run.time_to_train_s)} s" if reached else ""
    return element(
        "circle",
        element("title", title or f"run {run.number}: missed the target"),
        class_=" ".join(
            ("dot", "counts" if run.counts else "dropped", *([] if reached else ["missed"]))
        ),
        cx=scale.at(run.time_to_train_s) if reached else _MISSED_PX,
        cy=_MIDDLE_PX,
        r=4,
    )


def _upright(kind: str, x: float, top: float, bottom: float) -> Markup:
    return element("line", class_=kind, x1=x, x2=x, y1=top, y2=bottom)


def _words(score: ResultScore) -> str:
    times = sorted(run.time_to_train_s for run in score.completed)
    words = f"{len(times)} completed runs"
    if times and math.isfinite(times[0]):
        words += f": {', '.join(seconds(time) for time in times if math.isfinite(time))} s"
    if score.interval_s is not None:
        ends = seconds_range(score.interval_s.low, score.interval_s.high)
        words += f"; mean {seconds(score.olympic_mean_s)} s, interval {ends} s"
    return words


def _picture(height_px: int, *parts: Markup, **attributes: str) -> Markup:
    return element(
        "svg",
        *parts,
        class_="strip",
        viewBox=f"0 0 {WIDTH_PX} {height_px}",
        width=WIDTH_PX,
        height=height_px,
        **attributes,
    )
