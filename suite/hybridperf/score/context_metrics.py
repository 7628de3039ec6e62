"""Declare the metrics of published results: what they ran on, and how they stand to others."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hybridperf.score.metric import Metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.score.context import Efficiency, Improvement
    from hybridperf.score.official import Official

__all__ = ["EFFICIENCY", "IMPROVEMENT", "PUBLISHED"]


def _scaled(name: str) -> Callable[[Official], object]:
    def source(result: Official) -> object:
        efficiency: Efficiency | None = result.context.efficiency if result.context else None
        return getattr(efficiency, name) if efficiency else None

    return source


def _since(name: str) -> Callable[[Official], object]:
    get = attrgetter(name)

    def source(result: Official) -> object:
        improvement: Improvement | None = result.context.improvement if result.context else None
        try:
            return get(improvement) if improvement else None
        except AttributeError:  # no interval
            return None

    return source


def _interval(result: Official) -> str:
    improvement = result.context.improvement if result.context else None
    if improvement is None or improvement.interval is None:
        return ""
    return f"{improvement.interval.low:.3f} to {improvement.interval.high:.3f}"


PUBLISHED: Final = (
    Metric(
        "system_name",
        "as the description of the system states",
        lambda result: result.system_name or None,
        kind="text",
        heading="system",
        tables=("site",),
    ),
    Metric(
        "availability",
        "cloud, on-premise, preview or research, as the description states",
        lambda result: result.availability or None,
        kind="text",
        heading="available",
        tables=("site",),
    ),
    Metric(
        "accelerator",
        "as the catalogue of devices names it, or else as described; else the processor",
        lambda result: result.accelerator or None,
        kind="text",
        heading="accelerator",
        tables=("site",),
    ),
    Metric(
        "software",
        "framework and its stack, as the description states",
        lambda result: result.software or None,
        kind="text",
        heading="software",
        tables=("site",),
    ),
    Metric(
        "accelerator_minutes",
        "official_minutes times accelerators",
        attrgetter("accelerator_minutes"),
        unit="min",
        better="lower",
        heading="accelerator-minutes",
        form=",.1f",
        tables=("site",),
    ),
)
EFFICIENCY: Final = (
    Metric(
        "efficiency_time",
        "by time to train, from the smallest system of the same submitter, round and accelerator; "
        "1 is linear",
        _scaled("by_time_to_train"),
        better="higher",
        heading="efficiency, time",
        form=".1%",
        tables=("site",),
    ),
    Metric(
        "efficiency_throughput",
        "the same by end-to-end samples per second",
        _scaled("by_throughput"),
        better="higher",
        heading="efficiency, samples/s",
        form=".1%",
        tables=("site",),
    ),
    Metric(
        "efficiency_from",
        "system that the efficiency is relative to",
        lambda result: (result.context.smallest or None) if result.context else None,
        kind="text",
        heading="relative to",
        tables=("site",),
    ),
)
IMPROVEMENT: Final = (
    Metric(
        "since_round",
        "last round before with a result of the submitter; the best one of each is compared",
        _since("since"),
        kind="text",
        heading="since",
        show=lambda result: f"v{since}" if (since := _since("since")(result)) else "",
        tables=("site",),
    ),
    Metric(
        "since_system",
        "system of that result",
        _since("system"),
        kind="text",
        heading="system before",
        tables=("site",),
    ),
    Metric(
        "since_accelerator",
        "its accelerator",
        _since("accelerator"),
        kind="text",
        heading="accelerator before",
        tables=("site",),
    ),
    Metric(
        "since_ratio",
        "mean time over that of the result before",
        _since("ratio"),
        better="lower",
        heading="time ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_ratio_low",
        "lower end of its 95 % interval",
        _since("interval.low"),
        heading="95 % interval",
        show=_interval,
        tables=("site",),
    ),
    Metric("since_ratio_high", "upper end", _since("interval.high")),
    Metric(
        "since_verdict",
        "faster, slower, tie or undecided, by Welch's test at 5 %",
        _since("verdict"),
        kind="text",
        heading="verdict",
        tables=("site",),
    ),
    Metric(
        "since_samples_ratio",
        "samples to converge, new over old",
        _since("why.samples_ratio"),
        better="lower",
        heading="samples ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_accelerator_seconds_ratio",
        "accelerator-seconds per sample, new over old",
        _since("why.accelerator_seconds_per_sample_ratio"),
        better="lower",
        heading="accelerator-seconds per sample ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_accelerators_ratio",
        "accelerators, new over old; since_ratio is the product of the other two over this",
        _since("why.accelerators_ratio"),
        heading="accelerators ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_cause",
        "what contributed most to a faster or slower result: hardware (another accelerator), "
        "software, scale or convergence",
        _since("cause"),
        kind="text",
        heading="mostly by",
        tables=("site",),
    ),
)
