"""Show scaling efficiencies as text, JSON and CSV, and as tables and plots of a leaderboard."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.log.package import read_package
from hybridperf.report.svg import Scale, element, tick_text
from hybridperf.report.tables import csv_text, percent
from hybridperf.report.terminal import table_text, wrapped
from hybridperf.score.scaling import (
    CAUSES,
    SPEED_METRICS,
    devices_in_use,
    kind_of,
    metric_words,
    scale,
    side_of,
)
from hybridperf.score.statistics import RATIO_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from hybridperf.report.board import Board
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.scaling import DevicesInUse, MetricEfficiency, Scaled, Scaling, Side
    from hybridperf.score.statistics import Interval

__all__ = [
    "SCALING_COLUMNS",
    "ScalingGroup",
    "draw_scaling",
    "efficiency_words",
    "scaling_csv",
    "scaling_groups",
    "scaling_json",
    "scaling_text",
]

_LOSSES: Final = {cause: f"loss_{cause.replace('-', '_')}" for cause in CAUSES}
SCALING_COLUMNS: Final = (
    *("benchmark", "base", "result", "base_devices", "devices", "kind", "metric"),
    *("efficiency", "interval_low", "interval_high", "standing", "why"),
    *("by_samples", "by_seconds_per_sample", *_LOSSES.values(), "notes"),
)
_HEADS: Final = ("result", "devices", "scaling", "metric", "efficiency", "95 % interval", "")
_KEEP: Final = (9, 9, 5, 9, 9, 6, 9)  #: priorities of the columns, as `Metric.keep`
_WIDTH_PX: Final = 320
_HEIGHT_PX: Final = 204
_LEFT_PX: Final = 44.0
_RIGHT_PX: Final = _WIDTH_PX - 16.0
_TOP_PX: Final = 12.0
_FLOOR_PX: Final = _HEIGHT_PX - 40.0
_APART_PX: Final = 6.0  #: horizontal distance between the metrics of one result
_MARKS: Final = ("counts", "dropped", "missed")  #: filled, hollow, dashed


def scaling_json(scaling: Scaling) -> dict[str, object]:
    """Return the efficiencies and their inputs as a JSON-serialisable dictionary."""
    return {
        "benchmark": visible(scaling.base.score.benchmark),
        "interval_method": RATIO_INTERVAL,
        "steady_throughput_over": scaling.base.steady_by,
        "base": _side(scaling.base),
        "results": [
            _side(each.side)
            | {
                "kind": each.kind,
                "efficiency": {
                    one.metric: {
                        "value": one.value,
                        "low": one.ends[0],
                        "high": one.ends[1],
                        "standing": one.standing,
                        "why": visible(one.why),
                    }
                    for one in each.efficiencies
                },
                "split": each.split
                and {
                    "samples": each.split.samples,
                    "seconds_per_sample": each.split.pace,
                    "losses": dict(each.split.losses),
                },
                "notes": list(each.notes),
            }
            for each in scaling.results
        ],
    }


def scaling_csv(scaling: Scaling) -> str:
    """Return CSV with one row per result and metric."""
    return csv_text(SCALING_COLUMNS, (row for each in scaling.results for row in _rows(each)))


def scaling_text(scaling: Scaling, width: int) -> str:
    """Return a table of at most ``width`` characters, with explanations of the figures below."""
    base = scaling.base
    rows = [
        (
            each.side.name,
            f"{each.side.devices.used}",
            each.kind,
            metric_words(one.metric),
            _efficiency_text(one.value),
            _interval_text(one.interval),
            _standing(one),
        )
        for each in scaling.results
        for one in each.efficiencies
    ]
    devices = base.devices.kind.removesuffix("s" * (base.devices.used == 1))
    title = f"{visible(base.score.benchmark)}: base {base.name}, {base.devices.used} {devices}"
    notes = [
        *(line for each in scaling.results for line in _why(each)),
        f"interval: {RATIO_INTERVAL}",
        f"steady throughput: {base.steady_by}, mean over all runs of the result",
    ]
    lines = [f"{title}, {len(base.runs)} runs", table_text(_HEADS, rows, width, _KEEP)]
    return "\n".join([*lines, *(line for note in notes for line in wrapped(note, width))])


def _efficiency_text(value: float | None) -> str:
    """Format an efficiency in per cent; a dash if unknown."""
    return "-" if value is None else f"{value * 100:.1f} %"


def _interval_text(interval: Interval | None) -> str:
    """Format an interval in per cent, with the lower bound only if the upper one is infinite."""
    if interval is None:
        return "-"
    low, high = interval.low * 100, interval.high * 100
    return f"{low:.1f} or more" if math.isinf(high) else f"{low:.1f} to {high:.1f}"


def _standing(one: MetricEfficiency) -> str:
    return one.why if one.rated else f"{one.standing}: not rated; {one.why}"


def _why(scaled: Scaled) -> Iterator[str]:
    split, name = scaled.split, scaled.side.name
    if split is None:
        yield f"{name}: no split: a run that counts missed its target, or records no samples"
    else:
        yield (
            f"{name}: {_efficiency_text(split.total)} by time to train = "
            f"{_efficiency_text(split.samples)} by samples to converge x "
            f"{_efficiency_text(split.pace)} by seconds per sample"
        )
        if split.losses:
            parts = ", ".join(f"{loss * 100:z.1f} {cause}" for cause, loss in split.losses)
            yield f"  {_efficiency_text(split.pace)} = 100 % of its device time less {parts}"
        else:
            yield "  the logs do not break down seconds per sample by the same causes"
    for note in scaled.notes:
        yield f"  {visible(note)}"


def _rows(scaled: Scaled) -> Iterator[dict[str, object]]:
    split = scaled.split
    losses = {_LOSSES[cause]: loss for cause, loss in split.losses} if split else {}
    for one in scaled.efficiencies:
        yield losses | {
            "benchmark": scaled.base.score.benchmark,
            "base": scaled.base.name,
            "result": scaled.side.name,
            "base_devices": scaled.base.devices.used,
            "devices": scaled.side.devices.used,
            "kind": scaled.kind,
            "metric": one.metric,
            "efficiency": one.value,
            "interval_low": one.ends[0],
            "interval_high": one.ends[1],
            "standing": one.standing,
            "why": one.why,
            "by_samples": split.samples if split else None,
            "by_seconds_per_sample": split.pace if split else None,
            "notes": "; ".join(scaled.notes),
        }


def _side(side: Side) -> dict[str, object]:
    return {
        "submitter": visible(side.package.org),
        "system": visible(side.package.system),
        "plan": visible(side.score.plan),
        "devices": side.devices.used,
        "devices_available": side.devices.available,
        "device_kind": side.devices.kind,
        "oversubscribed": side.devices.oversubscribed,
        "global_batch_size": side.batch_size,
        "software": side.software[0],
        "runs": len(side.runs),
    }


@dataclass(frozen=True, slots=True)
class ScalingGroup:
    """Results of a leaderboard that scale from one base."""

    base: Side
    kind: str
    results: tuple[tuple[JudgedResult, Scaled], ...]  #: sorted by number of devices

    @property
    def start(self) -> str:
        """Return a description of the base and its devices."""
        devices = self.base.devices.used
        return f"{devices} device{'s' * (devices > 1)} of {self.base.name}"


def scaling_groups(board: Board) -> list[ScalingGroup]:
    """Return how the valid results of ``board`` scale, by base and kind of scaling.

    A result is compared with the fastest result on the fewest devices that has the organisation,
    software, model of devices, and global batch size (strong scaling) or batch size per device
    (weak scaling) of the result. Figures that are not rated are left out.
    """
    found: dict[tuple[str, str], list[tuple[JudgedResult, Scaled]]] = {}
    for sides in _alike(board):
        fewest = min(side.devices.used for side, _ in sides)
        bases = [side for side, _ in sides if side.devices.used == fewest]
        for side, entry in sides:
            of_kind = {kind_of(base, side): base for base in reversed(bases)}  # the fastest first
            for kind in ("strong", "weak"):
                if side.devices.used > fewest and (base := of_kind.get(kind)):
                    (scaled,) = scale([base, side]).results
                    if scaled.rated:
                        found.setdefault((base.name, kind), []).append((entry, scaled))
    return [
        ScalingGroup(
            pairs[0][1].base, kind, tuple(sorted(pairs, key=lambda pair: pair[1].side.devices.used))
        )
        for (_, kind), pairs in sorted(found.items())
    ]


def _alike(board: Board) -> Iterator[Sequence[tuple[Side, JudgedResult]]]:
    """Yield the results of each organisation, software and hardware, the fastest first.

    Of results of one number of devices nothing is read, since nothing is to be compared.
    """
    usable: list[tuple[JudgedResult, DevicesInUse]] = []
    for entry in (row.entry for row in board.rows):
        devices = devices_in_use(entry.score.plan, entry.result.system)
        judged = entry.standing not in {"disputed", "not judged", "superseded", "withdrawn"}
        if judged and entry.score.plan and entry.score.olympic_mean_s is not None:
            usable += [(entry, devices)] if devices and not devices.oversubscribed else []
    groups: dict[tuple[object, ...], list[tuple[Side, JudgedResult]]] = {}
    for entry, devices in usable if len({one.used for _, one in usable}) > 1 else ():
        side = side_of(read_package(entry.result.package), entry.official.validity)
        alike = side.package.org, side.task, side.software, side.hardware, side.score.target
        groups.setdefault((*alike, devices.kind), []).append((side, entry))
    yield from groups.values()


def efficiency_words(one: MetricEfficiency | None) -> str:
    """Format an efficiency with its interval, as in ``83.8 % (77.5 % or more)``."""
    low, high = one.ends if one else (None, None)
    if one is None or low is None:
        return percent(one.value if one else None)
    upper = "or more" if high is None else f"to {percent(high)}"
    return f"{percent(one.value)} ({percent(low)} {upper})"


def draw_scaling(group: ScalingGroup) -> Markup:
    """Plot efficiency over devices: one mark per metric, with its interval as a line."""
    figures = [
        (entry, scaled.side.devices.used, one)
        for entry, scaled in group.results
        for one in scaled.rated.values()
    ]
    ends = [end for *_, one in figures for end in (one.value, *one.ends) if end is not None]
    heights = Scale.around([0.0, 1.0, *ends], start=_FLOOR_PX, stop=_TOP_PX, most_ticks=6)
    counts = sorted({group.base.devices.used, *(count for _, count, _ in figures)})
    places = Scale(math.log2(counts[0]), math.log2(counts[-1]), _LEFT_PX + 12, _RIGHT_PX - 12)
    parts = _axes(heights, places, counts)
    for entry, count, one in figures:
        index = SPEED_METRICS.index(one.metric)
        x = places.at(math.log2(count)) + (index - 1) * _APART_PX
        parts += _marked(one, heights, x, _MARKS[index], entry.score.system)
    words = "; ".join(
        f"{count} devices: {metric_words(one.metric)} {efficiency_words(one)}"
        for _, count, one in figures
    )
    return element(
        "svg",
        *parts,
        class_="panel",
        viewBox=f"0 0 {_WIDTH_PX} {_HEIGHT_PX}",
        width=_WIDTH_PX,
        height=_HEIGHT_PX,
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
        element("text", "devices", class_="label strong end", x=_RIGHT_PX, y=_HEIGHT_PX - 6)
    )
    for count in counts:
        x = places.at(math.log2(count))
        parts.append(element("text", f"{count}", class_="label centred", x=x, y=_HEIGHT_PX - 24))
    return parts


def _marked(
    one: MetricEfficiency, heights: Scale, x: float, mark: str, system: str
) -> list[Markup]:
    parts = []
    low, high = one.ends
    if low is not None:
        top = heights.stop if high is None else heights.at(high)
        parts.append(element("line", class_="axis", x1=x, x2=x, y1=heights.at(low), y2=top))
    title = f"{visible(system)}: {metric_words(one.metric)} {efficiency_words(one)}"
    y = heights.at(one.value or 0.0)
    parts.append(
        element("circle", element("title", title), class_=f"dot {mark}", cx=x, cy=y, r=3.5)
    )
    return parts
