"""Build escaped SVG elements and linear scales, with deterministic rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from markupsafe import Markup, escape

from hybridperf.findings import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Scale", "element", "fixed", "tick_text"]

_MOST: Final = 1e15  #: larger values are drawn at the edge


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
