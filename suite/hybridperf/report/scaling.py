"""Write scaling efficiencies as a text table, JSON and CSV."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.report.tables import csv_text
from hybridperf.report.terminal import table_text, wrapped
from hybridperf.score.scaling import CAUSES, METHOD, metric_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.score.interval import Interval
    from hybridperf.score.scaling import Efficiency, Scaled, Scaling, Side, Split

__all__ = [
    "SCALING_COLUMNS",
    "scaling_csv",
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


def scaling_json(scaling: Scaling) -> dict[str, object]:
    """Return the efficiencies and their inputs as a JSON-serialisable dictionary."""
    return {
        "benchmark": visible(scaling.base.score.benchmark),
        "interval_method": METHOD,
        "steady_throughput_over": scaling.base.steady_by,
        "base": _side(scaling.base),
        "results": [
            _side(each.side)
            | {
                "kind": each.kind,
                "cause": each.cause,
                "efficiency": {one.metric: _efficiency(one) for one in each.efficiencies},
                "split": _split(each.split),
                "notes": list(each.notes),
            }
            for each in scaling.results
        ],
    }


def scaling_csv(scaling: Scaling) -> str:
    """Return CSV with one row per result and metric."""
    rows = (row for scaled in scaling.results for row in _rows(scaled))
    return csv_text(SCALING_COLUMNS, rows)


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
    notes = [line for each in scaling.results for line in _why(each)]
    notes.append(f"interval: {METHOD}")
    notes.append(f"steady throughput: {base.steady_by}, mean over all runs of the result")
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


def _standing(one: Efficiency) -> str:
    if one.rated:
        return one.why
    unless = " unless the cause is named" if one.standing == "super-linear" else ""
    return f"{one.standing}: not rated{unless}; {one.why}"


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


def _efficiency(one: Efficiency) -> dict[str, object]:
    low, high = one.ends
    return {
        "value": one.value,
        "low": low,
        "high": high,
        "standing": one.standing,
        "why": visible(one.why),
    }


def _split(split: Split | None) -> dict[str, object] | None:
    if split is None:
        return None
    return {
        "samples": split.samples,
        "seconds_per_sample": split.pace,
        "losses": dict(split.losses),
    }
