"""Numbers as people read them; what is unknown is an en dash."""

from __future__ import annotations

import math

__all__ = ["UNKNOWN", "count", "ratio", "seconds", "seconds_range", "share"]

UNKNOWN = "\N{EN DASH}"
_LARGE = 1e9


def seconds(value: float | None) -> str:
    """Return ``value`` without its unit: hundredths below 1000, whole seconds from there on."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return _plain(value, 2 if abs(value) < 1000 else 0)


def seconds_range(low: float, high: float) -> str:
    """Return both ends, as `seconds` writes them."""
    return f"{seconds(low)}\N{EN DASH}{seconds(high)}"


def count(value: float | None) -> str:
    """Return a whole number with its thousands divided by commas."""
    return UNKNOWN if value is None or not math.isfinite(value) else _plain(value, 0)


def ratio(value: float | None) -> str:
    """Return ``value`` with two decimals, as in ``1.24``."""
    return UNKNOWN if value is None or not math.isfinite(value) else _plain(value, 2)


def share(value: float | None) -> str:
    """Return ``value`` in per cent with one decimal, as in ``12.3 %``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{_plain(value * 100, 1)}\N{NO-BREAK SPACE}%"


def _plain(value: float, decimals: int) -> str:
    return f"{value:.3g}" if abs(value) >= _LARGE else f"{value:,.{decimals}f}"
