"""Format numbers for reports, with an en dash for unknown values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridperf.score.score import ResultScore

__all__ = ["UNKNOWN", "count", "loader_sentence", "ratio", "seconds", "seconds_range", "share"]

UNKNOWN = "\N{EN DASH}"
_LARGE = 1e9
_FEW = 100  #: samples/s from which decimals are insignificant


def seconds(value: float | None) -> str:
    """Format seconds without the unit: two decimals below 1000, none from 1000 on."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return _plain(value, 2 if abs(value) < 1000 else 0)


def seconds_range(low: float, high: float) -> str:
    """Format an interval in seconds; ``1.00 or more`` if the upper bound is infinite."""
    if math.isinf(high):
        return f"{seconds(low)} or more"
    return f"{seconds(low)}\N{EN DASH}{seconds(high)}"


def count(value: float | None) -> str:
    """Format a whole number with thousands separators."""
    return UNKNOWN if value is None or not math.isfinite(value) else _plain(value, 0)


def ratio(value: float | None) -> str:
    """Format a ratio with two decimals, as in ``1.24``."""
    return UNKNOWN if value is None or not math.isfinite(value) else _plain(value, 2)


def share(value: float | None) -> str:
    """Format a share (0 to 1) in per cent with one decimal, as in ``12.3 %``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{_plain(value * 100, 1)}\N{NO-BREAK SPACE}%"


def loader_sentence(score: ResultScore) -> str | None:
    """Compare loader and training throughput in a sentence; None if either is unknown."""
    loader, compute_rate = score.loader_samples_per_s, score.compute_samples_per_s
    if loader is None or compute_rate is None:
        return None
    verdict = "the loaders are the bottleneck" if loader < compute_rate else "the loaders keep up"
    return (
        f"the loaders could deliver {_rate(loader)} samples/s, "
        f"training could consume {_rate(compute_rate)}: {verdict}."
    )


def _plain(value: float, decimals: int) -> str:
    return f"{value:.3g}" if abs(value) >= _LARGE else f"{value:,.{decimals}f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= _FEW else f"{value:.3g}"
