"""Group the scaling claims of a leaderboard by base, and plot them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.report.svg import Scale, element, tick_text
from hybridperf.report.tables import percent
from hybridperf.score.scaling import METRICS, metric_words, read_claim

if TYPE_CHECKING:
    from markupsafe import Markup

    from hybridperf.report.board import Board
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.scaling import Claim, Figure, Metric

__all__ = ["ScalingGroup", "claimed_share", "draw_scaling", "figure_by", "scaling_groups"]

WIDTH_PX: Final = 320
HEIGHT_PX: Final = 204
_LEFT_PX: Final = 44.0
_RIGHT_PX: Final = WIDTH_PX - 16.0
_TOP_PX: Final = 12.0
_FLOOR_PX: Final = HEIGHT_PX - 40.0
_APART_PX: Final = 6.0  #: horizontal distance between the metrics of one result
_MARKS: Final = ("counts", "dropped", "missed")  #: filled, hollow, dashed


@dataclass(frozen=True, slots=True)
class ScalingGroup:
    """Scaling claims with one base."""

    base: str
    devices: int  #: devices of the base
    kind: str
    claims: tuple[tuple[JudgedResult, Claim], ...]  #: sorted by number of devices

    @property
    def start(self) -> str:
        """Return a description of the base and its devices."""
        return f"{self.devices} device{'s' * (self.devices > 1)} of {self.base}"


def scaling_groups(board: Board) -> list[ScalingGroup]:
    """Return the scaling claims of the valid results of ``board`` whose base is also valid."""
    groups: dict[tuple[str, int, str], list[tuple[JudgedResult, Claim]]] = {}
    valid = {row.entry.result.package for row in board.rows}
    for row in board.rows:
        claim = read_claim(row.entry.result.package)  # results with unreadable claims are invalid
        if claim is not None and claim.base in valid:
            base = visible(f"{claim.base.org} {claim.base.system}")
            key = (base, claim.devices[0], claim.kind)
            groups.setdefault(key, []).append((row.entry, claim))
    return [
        ScalingGroup(*key, tuple(sorted(groups[key], key=lambda pair: pair[1].devices[1])))
        for key in sorted(groups)
    ]


def figure_by(claim: Claim, metric: Metric) -> Figure | None:
    """Return the claimed figure of ``metric``; None if there is none."""
    return next((each for each in claim.figures if each.metric == metric), None)


def claimed_share(figure: Figure | None) -> str:
    """Format a figure with its interval, as in ``83.8 % (77.5 % or more)``."""
    if figure is None:
        return percent(None)
    if figure.low is None:
        return percent(figure.value)
    high = "or more" if figure.high is None else f"to {percent(figure.high)}"
    return f"{percent(figure.value)} ({percent(figure.low)} {high})"


def draw_scaling(group: ScalingGroup) -> Markup:
    """Plot efficiency over devices: one mark per metric, with its interval as a line."""
    figures = [figure for _, claim in group.claims for figure in claim.figures]
    ends = [end for each in figures for end in (each.value, each.low, each.high) if end is not None]
    heights = Scale.around([0.0, 1.0, *ends], start=_FLOOR_PX, stop=_TOP_PX, most_ticks=6)
    counts = sorted({group.devices, *(claim.devices[1] for _, claim in group.claims)})
    places = Scale(math.log2(counts[0]), math.log2(counts[-1]), _LEFT_PX + 12, _RIGHT_PX - 12)
    parts = _axes(heights, places, counts)
    for entry, claim in group.claims:
        for index, metric in enumerate(METRICS):
            figure = figure_by(claim, metric)
            if figure is not None:
                x = places.at(math.log2(claim.devices[1])) + (index - 1) * _APART_PX
                parts += _marked(figure, heights, x, _MARKS[index], entry.score.system)
    words = "; ".join(
        f"{claim.devices[1]} devices: {metric_words(each.metric)} {claimed_share(each)}"
        for _, claim in group.claims
        for each in claim.figures
    )
    return element(
        "svg",
        *parts,
        class_="panel",
        viewBox=f"0 0 {WIDTH_PX} {HEIGHT_PX}",
        width=WIDTH_PX,
        height=HEIGHT_PX,
        role="img",
        aria_label=f"Scaling efficiency from {group.start}; {words}",
    )


def _axes(heights: Scale, places: Scale, counts: list[int]) -> list[Markup]:
    parts = []
    ticks = heights.ticks(6)
    shares = [tick * 100 for tick in ticks]
    for tick, label in zip(ticks, shares, strict=True):
        y = heights.at(tick)
        kind = "axis" if math.isclose(tick, 1) else "grid"
        parts += [
            element("line", class_=kind, x1=_LEFT_PX, x2=_RIGHT_PX, y1=y, y2=y),
            element(
                "text", f"{tick_text(label, shares)} %", class_="label end", x=_LEFT_PX - 4, y=y + 4
            ),
        ]
    parts.append(
        element("text", "devices", class_="label strong end", x=_RIGHT_PX, y=HEIGHT_PX - 6)
    )
    for count in counts:
        x = places.at(math.log2(count))
        parts.append(element("text", f"{count}", class_="label centred", x=x, y=HEIGHT_PX - 24))
    return parts


def _marked(figure: Figure, heights: Scale, x: float, mark: str, system: str) -> list[Markup]:
    parts = []
    if figure.low is not None:
        top = heights.stop if figure.high is None else heights.at(figure.high)
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=heights.at(figure.low), y2=top))
    title = f"{visible(system)}: {metric_words(figure.metric)} {claimed_share(figure)}"
    y = heights.at(figure.value)
    parts.append(
        element("circle", element("title", title), class_=f"dot {mark}", cx=x, cy=y, r=3.5)
    )
    return parts
