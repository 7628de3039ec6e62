"""Test two means for equality (Welch's t test) and bound their ratio (Fieller's interval).

Student's t distribution is implemented here because scipy would be the largest dependency of
scoring and reporting; tests require agreement with scipy within 1e-8.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.score.interval import Interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["TEST", "Welch", "ratio_interval", "t_quantile", "t_tail", "welch"]

TEST: Final = "Welch's t test of the mean times, two-sided"
_LEVEL: Final = 0.95
_TINY: Final = 1e-300
_EPSILON: Final = 1e-16
_MOST_TERMS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Welch:
    """The statistic, degrees of freedom and two-sided p-value of Welch's t test."""

    t: float
    degrees: float
    p_value: float


def welch(one: Sequence[float], other: Sequence[float], scale: float = 1.0) -> Welch | None:
    """Test whether the mean of ``other`` is ``scale`` times that of ``one`` (Welch 1947).

    ``one`` [run] and ``other`` [run] are in the same unit. Returns None for fewer than two values
    each, or if both variances are zero.
    """
    if min(len(one), len(other)) < 2:
        return None
    first = scale**2 * statistics.variance(one) / len(one)
    second = statistics.variance(other) / len(other)
    if first + second <= 0:
        return None
    difference = statistics.fmean(other) - scale * statistics.fmean(one)
    t = difference / math.sqrt(first + second)
    # Satterthwaite 1946; normalised to shares, whose squares do not underflow.
    shares = first / (first + second), second / (first + second)
    degrees = 1 / (shares[0] ** 2 / (len(one) - 1) + shares[1] ** 2 / (len(other) - 1))
    return Welch(t, degrees, min(1.0, 2 * t_tail(abs(t), degrees)))


def ratio_interval(one: Sequence[float], other: Sequence[float]) -> Interval | None:
    """Return the 95 % confidence interval of the mean of ``other`` over the mean of ``one``.

    Inverts Welch's test (Fieller 1954), so it contains 1 exactly if the means do not differ
    significantly. Returns None if both variances are zero or if the interval is unbounded.
    """
    if welch(one, other) is None:
        return None
    means = statistics.fmean(one), statistics.fmean(other)
    if min(means) <= 0:
        return None
    ratio = means[1] / means[0]

    def rejected(scale: float) -> bool:
        test = welch(one, other, scale)
        return test is None or test.p_value < 1 - _LEVEL

    high = ratio
    for _ in range(20):
        high *= 2
        if rejected(high):
            low = _edge(rejected, 0.0, ratio) if rejected(0.0) else 0.0
            return Interval(low, _edge(rejected, high, ratio))
    return None


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """Bisect for the bound between a rejected (``outside``) and an accepted (``inside``) value."""
    for _ in range(50):
        middle = (outside + inside) / 2
        if rejected(middle):
            outside = middle
        else:
            inside = middle
    return inside


def t_tail(t: float, degrees: float) -> float:
    """Return the upper tail probability of Student's t (Abramowitz and Stegun 1964, 26.7.1)."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    whole = degrees + t * t
    tail = _incomplete_beta(degrees / whole, t * t / whole, degrees / 2, 0.5) / 2
    return tail if t >= 0 else 1 - tail


@functools.cache
def t_quantile(probability: float, degrees: float) -> float:
    """Return the quantile of Student's t; ``probability`` must be in [0.5, 1)."""
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > 1 - probability:
        low, high = high, high * 2
    while (middle := (low + high) / 2) not in (low, high):
        if t_tail(middle, degrees) > 1 - probability:
            low = middle
        else:
            high = middle
    return high


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function at ``x``; ``rest`` is ``1 - x``.

    Uses the continued fraction of Abramowitz and Stegun 1964, 26.5.8, or for large ``x`` that of
    the reflected function, which converges faster.
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(rest, x, b, a)
    log_front = a * math.log(x) + b * math.log(rest)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / a / _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1 / (1 + d2 / (1 + ...)) by Lentz's modified method (1976)."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + factor * denominator or _TINY)
        numerator = 1 + factor / numerator or _TINY
        change = numerator * denominator
        value *= change
        if abs(change - 1) < _EPSILON:
            break
    return value
