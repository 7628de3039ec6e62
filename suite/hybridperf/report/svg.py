"""Draw SVG: elements and scales, runs, learning curves and timelines.

Coordinates are rounded, so that every machine draws the same bytes; all text is escaped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from markupsafe import Markup, escape

from hybridperf.findings import visible
from hybridperf.report.tables import ratio, run_outcome, seconds, seconds_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hybridperf.report.board import Board, Row
    from hybridperf.report.evidence import TimedAction, Timeline
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.official import Official, Why
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore

__all__ = [
    "Axes",
    "Scale",
    "curve_axes",
    "dots_scale",
    "draw_axis",
    "draw_bars",
    "draw_curves",
    "draw_dots",
    "draw_panel",
    "draw_strip",
    "draw_timelines",
    "element",
    "fixed",
    "picture",
    "strip_marks",
    "strip_scale",
    "tick_text",
    "why_scale",
]

_MOST: Final = 1e15  #: larger values are drawn at the edge
_TICKS: Final = 6  #: of a strip or timeline

_STRIP_PX: Final = (260, 34)
_STRIP_AXIS_PX: Final = 20
_STRIP_MISSED_PX: Final = _STRIP_PX[0] - 8.0  #: position of runs without a time
_BARS_PX: Final = (110, 26)

_PANEL_PX: Final = (300, 190)
_LEFT, _RIGHT, _TOP, _BOTTOM = 38.0, _PANEL_PX[0] - 12.0, 22.0, _PANEL_PX[1] - 34.0

_TIMELINE_PX: Final = 720
_TIMELINE_LEFT_PX: Final = 90
_RANK_PX: Final = 16

_DOTS_PX: Final = (180, 22)
_DOTS_MISSED_PX: Final = _DOTS_PX[0] - 5.0  #: position of runs without a time
_LEAST_RATIO, _MOST_RATIO = 1.02, 2.0  #: ratios to the mean at the ends of the axis


# Elements and scales


def fixed(value: float) -> str:
    """Round a coordinate to one decimal, for identical output on all machines."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def element(name: str, *children: str, **attributes: str | float) -> Markup:
    """Return an SVG element; text is escaped, ``Markup`` is not, ``_`` in names becomes ``-``."""
    pairs = (
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"),
            visible(value) if isinstance(value, str) else fixed(value),
        )
        for key, value in attributes.items()
    )
    inner = (child if isinstance(child, Markup) else escape(visible(child)) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(pairs), Markup("").join(inner))


def picture(
    kind: str, size_px: tuple[float, float], *parts: Markup, label: str = "", fluid: bool = False
) -> Markup:
    """Return an SVG picture of CSS class ``kind``, as wide as its container if ``fluid``.

    Screen readers read ``label``, and skip a picture without one.
    """
    width, height = size_px
    size = {} if fluid else {"width": width, "height": height}
    reading = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    view = f"0 0 {width} {height}"
    return element("svg", *parts, class_=kind, viewBox=view, **size, **reading)


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from ``low .. high`` to ``start .. stop``, clamped to that range."""

    low: float
    high: float
    start: float
    stop: float

    @classmethod
    def around(cls, values: Iterable[float], *, start: float, stop: float, most_ticks: int) -> Self:
        """Return a scale that covers all finite ``values`` and ends at ticks."""
        known = [min(max(value, -_MOST), _MOST) for value in values if math.isfinite(value)]
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        least = max(abs(low), abs(high), 1e-3) * 1e-3
        if high - low < least:
            low, high = low - least / 2, high + least / 2
        step = _step(high - low, most_ticks)
        return cls(math.floor(low / step) * step, math.ceil(high / step) * step, start, stop)

    def at(self, value: float) -> float:
        """Return the coordinate of ``value``."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, most: int) -> list[float]:
        """Return about ``most`` round values within the domain."""
        step = _step(self.high - self.low, most)
        first, last = math.ceil(self.low / step - 1e-6), math.floor(self.high / step + 1e-6)
        return [index * step for index in range(first, last + 1)]


def tick_text(value: float, ticks: list[float]) -> str:
    """Format ``value`` with as many decimals as the spacing of ``ticks`` requires."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else abs(value) or 1.0
    decimals = min(max(0, -math.floor(math.log10(step) + 1e-9)), 9)
    return f"{value + 0.0:.{decimals}f}" if abs(value) < 1e6 else f"{value:.3g}"


def _step(span: float, most: int) -> float:
    """Return the smallest step 1, 2 or 5 times 10^n with at most ``most`` steps in ``span``."""
    power = 10.0 ** math.floor(math.log10(span / most))
    return next(
        power * factor for factor in (1, 2, 5, 10) if power * factor * most >= span * (1 - 1e-9)
    )


def _upright(kind: str, x: float, top: float, bottom: float) -> Markup:
    return element("line", class_=kind, x1=x, x2=x, y1=top, y2=bottom)


# The runs of a result, and the causes of its ratio to the first result


def strip_scale(scores: Iterable[ResultScore]) -> Scale:
    """Return a common time axis for ``scores``."""
    values: list[float] = []
    for score in scores:
        values += [run.time_to_train_s for run in score.completed]
        if score.interval_s is not None:
            values += [score.interval_s.low, score.interval_s.high]  # infinite values are ignored
    return Scale.around(values, start=10, stop=_STRIP_PX[0] - 28, most_ticks=12)


def draw_axis(scale: Scale) -> Markup:
    """Return the tick labels above the strips as SVG."""
    ticks = scale.ticks(_TICKS)
    labels = [
        element("text", tick_text(tick, ticks), x=scale.at(tick), y=14, class_="label centred")
        for tick in ticks
    ]
    return picture("strip", (_STRIP_PX[0], _STRIP_AXIS_PX), *labels)


def draw_strip(score: ResultScore, scale: Scale) -> Markup:
    """Return SVG with a dot per completed run, a tick for the mean and a band for its interval."""
    height = _STRIP_PX[1]
    parts = [_upright("grid", scale.at(tick), 0, height) for tick in scale.ticks(_TICKS)]
    if score.interval_s is not None:
        left, right = scale.at(score.interval_s.low), scale.at(score.interval_s.high)
        parts.append(
            element("rect", class_="band", x=left, y=9, width=max(right - left, 1.0), height=16)
        )
    if score.olympic_mean_s is not None and math.isfinite(score.olympic_mean_s):
        parts.append(_upright("mean", scale.at(score.olympic_mean_s), 5, height - 5))
    # Hollow marks of dropped runs are drawn last, since they hide nothing.
    parts += [_dot(run, scale) for run in sorted(score.completed, key=lambda run: not run.counts)]
    return picture("strip", _STRIP_PX, *parts, label=_strip_label(score))


def strip_marks(scores: Iterable[ResultScore]) -> set[str]:
    """Return the CSS classes of the marks in the strips of ``scores``."""
    marks = set[str]()
    for score in scores:
        marks |= {kind for run in score.completed for kind in _dot_kinds(run)}
        marks |= {"band"} if score.interval_s is not None else set()
    return marks


def _dot_kinds(run: RunScore) -> tuple[str, ...]:
    reached = math.isfinite(run.time_to_train_s)
    return "counts" if run.counts else "dropped", *(() if reached else ("missed",))


def _dot(run: RunScore, scale: Scale) -> Markup:
    reached = math.isfinite(run.time_to_train_s)
    outcome = f"{seconds(run.time_to_train_s)} s" if reached else run_outcome(run)
    return element(
        "circle",
        element("title", f"run {run.number}: {outcome}"),
        class_=" ".join(("dot", *_dot_kinds(run))),
        cx=scale.at(run.time_to_train_s) if reached else _STRIP_MISSED_PX,
        cy=_STRIP_PX[1] / 2,
        r=4,
    )


def _strip_label(score: ResultScore) -> str:
    times = sorted(run.time_to_train_s for run in score.completed)
    label = f"{len(times)} completed runs"
    if times and math.isfinite(times[0]):
        label += f": {', '.join(seconds(time) for time in times if math.isfinite(time))} s"
    if score.interval_s is not None:
        ends = seconds_range(score.interval_s.low, score.interval_s.high)
        label += f"; mean {seconds(score.olympic_mean_s)} s, interval {ends} s"
    return label


def why_scale(whys: Iterable[Why]) -> Scale:
    """Return a logarithmic axis that includes 1; products of ratios become sums of bar lengths."""
    logs = [
        math.log2(value)
        for why in whys
        for value in (why.samples_ratio, why.seconds_per_sample_ratio)
    ]
    return Scale(min([*logs, -0.1]), max([*logs, 0.5]), 2, _BARS_PX[0] - 2)


def draw_bars(why: Why, scale: Scale) -> Markup:
    """Return SVG with bars for samples and for seconds per sample; right of 1 is slower."""
    one = scale.at(0)
    parts = [_upright("axis", one, 0, _BARS_PX[1])]
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
    return picture("bars", _BARS_PX, *parts, label=label)


# Learning curves: a panel per result on common axes, the curves of all results in the back


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes shared by all panels of some results of a leaderboard."""

    name: str  #: id of their definition
    time: Scale
    quality: Scale
    target: float | None
    metric: str

    @property
    def curves(self) -> str:
        """Return the id of the definition of all curves."""
        return f"{self.name}-curves"


def curve_axes(board: Board, rows: Sequence[Row], name: str) -> Axes:
    """Return the axes ``name``, which cover every evaluation of ``rows`` of ``board``."""
    points = [point for row in rows for run in row.entry.score.runs for point in run.curve]
    goal = [] if board.target is None else [board.target]
    times = [0.0, *(point.time_s for point in points)]
    qualities = [*(point.quality for point in points), *goal]
    return Axes(
        name=name,
        time=Scale.around(times, start=_LEFT, stop=_RIGHT, most_ticks=10),
        quality=Scale.around(qualities, start=_BOTTOM, stop=_TOP, most_ticks=10),
        target=board.target,
        metric=board.metric,
    )


def draw_curves(rows: Sequence[Row], axes: Axes) -> Markup:
    """Return SVG definitions of ``axes`` and of the curves of ``rows``, for `draw_panel`.

    The curves of a result have the id ``curves-`` and its anchor.
    """
    results = [
        element(
            "g",
            *(_curve(run, axes) for run in row.entry.score.runs),
            id=f"curves-{row.entry.anchor}",
        )
        for row in rows
    ]
    frame = element("g", *_frame(axes), *_target(axes), id=axes.name)
    definitions = element("defs", frame, element("g", *results, id=axes.curves))
    return element("svg", definitions, class_="definitions", aria_hidden="true")


def draw_panel(entry: JudgedResult, axes: Axes) -> Markup:
    """Return the panel of one result as SVG, in front of the curves of all results."""
    parts = [
        element("use", href=f"#{axes.name}"),
        element("use", href=f"#{axes.curves}", class_="others"),
        element("use", href=f"#curves-{entry.anchor}", class_="own"),
    ]
    label = f"{axes.metric} over seconds since run_start, {len(entry.score.runs)} runs"
    return picture("panel", _PANEL_PX, *parts, label=label, fluid=True)


def _curve(run: RunScore, axes: Axes) -> Markup:
    title = f"run {run.number}, {run_outcome(run)}"
    parts = [element("title", title), _path(run, axes)]
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
        parts.append(_upright("axis", x, _BOTTOM, _BOTTOM + 4))
        text = tick_text(tick, times)
        parts.append(element("text", text, class_="label centred", x=x, y=_BOTTOM + 15))
    name = "seconds since run_start"
    parts.append(element("text", name, class_="label strong end", x=_RIGHT, y=_BOTTOM + 29))
    return parts


# Timelines: the actions of each rank of a pipeline in a step


def draw_timelines(timelines: Sequence[tuple[str, Timeline]]) -> Markup:
    """Return SVG of named ``timelines`` below each other, on one axis of milliseconds."""
    stop_s = max(action.stop_s for _, ranks in timelines for rank in ranks for action in rank)
    scale = Scale.around(
        [0.0, stop_s * 1e3], start=_TIMELINE_LEFT_PX, stop=_TIMELINE_PX - 30, most_ticks=_TICKS
    )
    parts, top = list[Markup](), 14
    for name, ranks in timelines:
        parts.append(element("text", name, class_="label strong", x=0, y=top))
        for rank, actions in enumerate(ranks):
            row = top + 6 + rank * _RANK_PX
            parts.append(element("text", f"rank {rank}", class_="label", x=0, y=row + 11))
            parts += (_draw_action(action, scale, row) for action in actions)
        top += 6 + len(ranks) * _RANK_PX + 22
    ticks = scale.ticks(_TICKS)
    for tick in ticks:
        x = scale.at(tick)
        text = f"{tick_text(tick, ticks)} ms"
        parts.append(element("text", text, class_="label centred", x=x, y=top - 2))
    label = "; ".join(" ".join(_timeline_label(name, ranks)) for name, ranks in timelines)
    return picture("timeline", (_TIMELINE_PX, top + 6), *parts, label=label)


def _draw_action(action: TimedAction, scale: Scale, top: float) -> Markup:
    start, stop = scale.at(action.start_s * 1e3), scale.at(action.stop_s * 1e3)
    duration_ms = (action.stop_s - action.start_s) * 1e3
    title = f"{action.kind}, step {action.step}, stage {action.stage}"
    title += "" if action.kind == "update" else f", micro-batch {action.microbatch}"
    return element(
        "rect",
        element("title", f"{title}: {duration_ms:.2f} ms"),
        class_=f"action {action.kind.replace(' ', '-')}",
        x=start,
        y=top,
        width=max(stop - start, 0.5),
        height=_RANK_PX - 3,
    )


def _timeline_label(name: str, ranks: Timeline) -> Iterator[str]:
    actions = [action for rank in ranks for action in rank]
    span_s = max(each.stop_s for each in actions) - min(each.start_s for each in actions)
    busy_s = math.fsum(each.stop_s - each.start_s for each in actions)
    yield f"{name}: {len(ranks)} ranks, {span_s * 1e3:.1f} ms,"
    yield f"idle for {1 - busy_s / (span_s * len(ranks)) if span_s else 0:.0%} of it"


# MLPerf's rounds: the runs of a result over their mean


def dots_scale(results: Iterable[Official]) -> Scale:
    """Return a common logarithmic axis for the times of ``results`` over their olympic means."""
    values = [
        abs(math.log(time_s / mean_s))
        for result in results
        if (mean_s := _mean_s(result)) is not None
        for run in result.score.completed
        if 0 < (time_s := run.time_to_train_s) < math.inf
    ]
    most = min(max([*values, math.log(_LEAST_RATIO)]), math.log(_MOST_RATIO))
    return Scale(-most, most, 5, _DOTS_PX[0] - 20)


def draw_dots(result: Official, scale: Scale) -> Markup:
    """Return SVG with a dot for every run, a bar for the 95 % interval and a line for the mean.

    "" for a result without an olympic mean.
    """
    score, height, mean_s = result.score, _DOTS_PX[1], _mean_s(result)
    if mean_s is None:
        return Markup("")
    parts = []
    if score.interval_s is not None and score.interval_s.low > 0:
        left = _at_ratio(score.interval_s.low / mean_s, scale)
        width = max(_at_ratio(score.interval_s.high / mean_s, scale) - left, 1.0)
        parts.append(element("rect", class_="band", x=left, y=4, width=width, height=14))
    parts.append(_upright("mean", scale.at(0), 2, height - 2))
    for counts in (True, False):
        runs = [run for run in score.completed if run.counts is counts]
        points = (
            _at_ratio(run.time_to_train_s / mean_s, scale)
            if 0 < run.time_to_train_s < math.inf
            else _DOTS_MISSED_PX
            for run in runs
        )
        # One path of zero-length lines with round ends is a tenth of the size of circles.
        path = "".join(f"M{fixed(x)} {fixed(height / 2)}h0" for x in points)
        if path:
            parts.append(element("path", class_="counts" if counts else "dropped", d=path))
    return picture("dots", _DOTS_PX, *parts)


def _mean_s(result: Official) -> float | None:
    mean_s = result.score.olympic_mean_s
    return mean_s if mean_s and 0 < mean_s < math.inf else None


def _at_ratio(ratio_to_mean: float, scale: Scale) -> float:
    return scale.at(math.log(ratio_to_mean)) if math.isfinite(ratio_to_mean) else scale.stop
