"""Draw the runs of a result as dots, and its ratios to the fastest result as bars."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hybridperf.report.figures import ratio, seconds, seconds_range
from hybridperf.report.svg import Scale, element, tick_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markupsafe import Markup

    from hybridperf.score.official import Why
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore

__all__ = ["draw_axis", "draw_bars", "draw_strip", "strip_scale", "why_scale"]

WIDTH_PX: Final = 300
HEIGHT_PX: Final = 34
_MIDDLE_PX: Final = HEIGHT_PX / 2
_AXIS_PX: Final = 20
_MISSED_PX: Final = WIDTH_PX - 8.0  #: position of runs without a time
_TICKS: Final = 7
_BARS_WIDTH_PX: Final = 150
_BARS_HEIGHT_PX: Final = 26


def strip_scale(scores: Iterable[ResultScore]) -> Scale:
    """Return a common time axis for ``scores``."""
    values: list[float] = []
    for score in scores:
        values += [run.time_to_train_s for run in score.completed]
        if score.interval_s is not None:
            values += [score.interval_s.low, score.interval_s.high]  # infinite values are ignored
    return Scale.around(values, start=10, stop=WIDTH_PX - 28, most_ticks=12)


def draw_axis(scale: Scale) -> Markup:
    """Return the tick labels above the strips as SVG."""
    ticks = scale.ticks(_TICKS)
    labels = [
        element("text", tick_text(tick, ticks), x=scale.at(tick), y=14, class_="label centred")
        for tick in ticks
    ]
    return _picture(_AXIS_PX, *labels, aria_hidden="true")


def draw_strip(score: ResultScore, scale: Scale) -> Markup:
    """Return SVG with a dot per completed run, a tick for the mean and a band for its interval."""
    parts = [_upright("grid", scale.at(tick), 0, HEIGHT_PX) for tick in scale.ticks(_TICKS)]
    if score.interval_s is not None:
        left, right = scale.at(score.interval_s.low), scale.at(score.interval_s.high)
        parts.append(
            element("rect", class_="band", x=left, y=9, width=max(right - left, 1.0), height=16)
        )
    if score.olympic_mean_s is not None and math.isfinite(score.olympic_mean_s):
        parts.append(_upright("mean", scale.at(score.olympic_mean_s), 5, HEIGHT_PX - 5))
    # Hollow marks of dropped runs are drawn last, since they hide nothing.
    parts += [_dot(run, scale) for run in sorted(score.completed, key=lambda run: not run.counts)]
    return _picture(HEIGHT_PX, *parts, role="img", aria_label=_words(score))


def why_scale(whys: Iterable[Why]) -> Scale:
    """Return a logarithmic axis that includes 1; products of ratios become sums of bar lengths."""
    logs = [
        math.log2(value)
        for why in whys
        for value in (why.samples_ratio, why.seconds_per_sample_ratio)
    ]
    return Scale(min([*logs, -0.1]), max([*logs, 0.5]), 2, _BARS_WIDTH_PX - 2)


def draw_bars(why: Why, scale: Scale) -> Markup:
    """Return SVG with bars for samples and for seconds per sample; right of 1 is slower."""
    one = scale.at(0)
    parts = [element("line", class_="axis", x1=one, x2=one, y1=0, y2=_BARS_HEIGHT_PX)]
    for kind, value, top in (
        ("samples", why.samples_ratio, 4),
        ("pace", why.seconds_per_sample_ratio, 14),
    ):
        end = scale.at(math.log2(value))
        width = max(abs(end - one), 0.5)
        parts.append(
            element("rect", class_=f"bar {kind}", x=min(one, end), y=top, width=width, height=8)
        )
    label = (
        f"{ratio(why.samples_ratio)} times the samples, "
        f"{ratio(why.seconds_per_sample_ratio)} times the seconds per sample"
    )
    size = f"0 0 {_BARS_WIDTH_PX} {_BARS_HEIGHT_PX}"
    return element(
        "svg",
        *parts,
        viewBox=size,
        width=_BARS_WIDTH_PX,
        height=_BARS_HEIGHT_PX,
        role="img",
        aria_label=label,
    )


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
