"""Two bars a result: what samples and what seconds per sample add to the fastest result's time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from suite.report.figures import ratio
from suite.report.svg import Scale, element

if TYPE_CHECKING:
    from collections.abc import Iterable

    from markupsafe import Markup

    from suite.report.why import Split

__all__ = ["draw_bars", "why_scale"]

WIDTH_PX: Final = 150
HEIGHT_PX: Final = 26


def why_scale(splits: Iterable[Split]) -> Scale:
    """Return a logarithmic axis that always holds 1, so that bars add up as ratios multiply."""
    logs = [
        math.log2(value) for split in splits for value in (split.samples, split.seconds_per_sample)
    ]
    return Scale(min([*logs, -0.1]), max([*logs, 0.5]), 2, WIDTH_PX - 2)


def draw_bars(split: Split, scale: Scale) -> Markup:
    """Return a bar for samples above one for seconds per sample, from 1 rightward where slower."""
    one = scale.at(0)
    parts = [element("line", class_="axis", x1=one, x2=one, y1=0, y2=HEIGHT_PX)]
    for kind, value, top in (("samples", split.samples, 4), ("pace", split.seconds_per_sample, 14)):
        end = scale.at(math.log2(value))
        width = max(abs(end - one), 0.5)
        parts.append(
            element("rect", class_=f"bar {kind}", x=min(one, end), y=top, width=width, height=8)
        )
    label = (
        f"{ratio(split.samples)} times the samples, "
        f"{ratio(split.seconds_per_sample)} times the seconds per sample"
    )
    size = f"0 0 {WIDTH_PX} {HEIGHT_PX}"
    return element(
        "svg", *parts, viewBox=size, width=WIDTH_PX, height=HEIGHT_PX, role="img", aria_label=label
    )
