"""Write projected scaling of the full-size models as one self-contained HTML page."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from hybridperf.projection.scaling_curves import BATCH, PRECISION
from hybridperf.report.page import digest, environment, source
from hybridperf.report.svg import Scale, element, fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.projection.scaling_curves import ScalingCurve

__all__ = ["draw_curves", "projected_scaling_page"]

WIDTH_PX: Final = 480
HEIGHT_PX: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, WIDTH_PX - 84.0, 26.0, HEIGHT_PX - 40.0
_DASHES: Final = ("none", "7 3", "2 3", "9 3 2 3")
_APART_PX: Final = 12.0  #: of the names of curves that end together
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


def projected_scaling_page(curves: Sequence[ScalingCurve]) -> str:
    """Return the page of ``curves``, which are sorted by task."""
    style = source("page.css")
    groups = (list(each) for _, each in groupby(curves, key=lambda curve: curve.task))
    panels = [(group[0].task, group, draw_curves(group)) for group in groups]
    template = environment().get_template("projected_scaling.html.j2")
    return template.render(
        panels=panels,
        batch=BATCH,
        precision=PRECISION,
        policy=f"default-src 'none'; style-src '{digest(style)}'; base-uri 'none'",
        style=Markup(style),  # noqa: S704 - our own file
    )


def draw_curves(curves: Sequence[ScalingCurve]) -> Markup:
    """Draw the efficiency of one task over devices: one line for each system."""
    counts = [point.devices for point in curves[0].points]
    places = Scale(math.log2(counts[0]), math.log2(counts[-1]), _LEFT, _RIGHT)
    heights = Scale(0.0, 1.0, _BOTTOM, _TOP)
    parts = [element("text", "projected efficiency", class_="label strong", x=4, y=13)]
    for tick in _TICKS:
        y = heights.at(tick)
        parts.append(element("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=y, y2=y))
        parts.append(element("text", f"{tick:.0%}", class_="label right", x=_LEFT - 5, y=y + 4))
    for count in counts[:: 2 if len(counts) > 6 else 1]:
        x = places.at(math.log2(count))
        parts.append(element("text", f"{count:,}", class_="label centred", x=x, y=_BOTTOM + 16))
    parts.append(element("text", "devices", class_="label strong end", x=_RIGHT, y=_BOTTOM + 32))
    lowest = _BOTTOM
    in_order = sorted(enumerate(curves), key=lambda pair: pair[1].points[-1].efficiency)
    for number, curve in in_order:
        line = "L".join(
            f"{fixed(places.at(math.log2(point.devices)))} {fixed(heights.at(point.efficiency))}"
            for point in curve.points
        )
        parts.append(
            element(
                "path",
                d=f"M{line}",
                class_="axis",
                fill="none",
                stroke_width="1.5",
                stroke_dasharray=_DASHES[number % len(_DASHES)],
            )
        )
        lowest = min(heights.at(curve.points[-1].efficiency) + 4, lowest - _APART_PX)
        parts.append(element("text", curve.system, class_="label", x=_RIGHT + 6, y=lowest))
    words = "; ".join(
        f"{curve.system}: {curve.points[-1].efficiency:.0%} on {counts[-1]} devices"
        for curve in curves
    )
    return element(
        "svg",
        *parts,
        class_="panel",
        viewBox=f"0 0 {WIDTH_PX} {HEIGHT_PX}",
        role="img",
        aria_label=f"Projected efficiency of {curves[0].task}, not measured: {words}",
    )
