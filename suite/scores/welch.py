"""Do two means differ? Welch's t test, and how far their ratio may lie from one."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.scores.interval import Interval
from suite.scores.student import t_quantile, t_tail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TEST", "Welch", "ratio_interval", "welch"]

TEST: Final = "Welch's t test of the mean times, two-sided"
_LEVEL: Final = 0.95


@dataclass(frozen=True, slots=True)
class Welch:
    """A test statistic and how likely one as far from zero is where the means are equal."""

    t: float
    degrees: float
    p_value: float


def welch(one: Sequence[float], other: Sequence[float], scale: float = 1.0) -> Welch | None:
    """Test whether the mean of ``other`` is ``scale`` times that of ``one`` (Welch 1947).

    None for fewer than two values each, or where none of them varies.
    """
    if min(len(one), len(other)) < 2:
        return None
    first = scale**2 * statistics.variance(one) / len(one)
    second = statistics.variance(other) / len(other)
    if first + second <= 0:
        return None
    t = (_mean(other) - scale * _mean(one)) / math.sqrt(first + second)
    # Satterthwaite 1946; by shares, whose squares do not vanish.
    shares = first / (first + second), second / (first + second)
    degrees = 1 / (shares[0] ** 2 / (len(one) - 1) + shares[1] ** 2 / (len(other) - 1))
    return Welch(t, degrees, min(1.0, 2 * t_tail(abs(t), degrees)))


def ratio_interval(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """Return which ratios of the mean of ``other`` to that of ``one`` Welch's test does not reject.

    At 5 % (Fieller 1954): it holds 1 where, and only where, the means do not differ. None where
    nothing varies, or where the ratio has no upper end.
    """
    if welch(one, other) is None or min(_mean(one), _mean(other)) <= 0:
        return None
    ratio = _mean(other) / _mean(one)

    def rejected(scale: float) -> bool:
        test = welch(one, other, scale)
        return test is None or abs(test.t) > t_quantile((1 + _LEVEL) / 2, test.degrees)

    high = ratio
    for _ in range(20):
        high *= 2
        if rejected(high):
            low = _edge(rejected, 0.0, ratio) if rejected(0.0) else 0.0
            return Interval(low, _edge(rejected, high, ratio))
    return None


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """Return where, between the two, values begin to be rejected."""
    for _ in range(50):
        middle = (outside + inside) / 2
        if rejected(middle):
            outside = middle
        else:
            inside = middle
    return inside


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
