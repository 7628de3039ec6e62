"""Student's t distribution, without scipy: its tail and its quantiles."""

from __future__ import annotations

import functools
import math
from typing import Final

__all__ = ["t_quantile", "t_tail"]

_TINY: Final = 1e-300
_EPSILON: Final = 1e-16
_MOST_TERMS: Final = 10_000


def t_tail(t: float, degrees: float) -> float:
    """Return the probability of more than ``t`` (Abramowitz and Stegun 1964, 26.7.1)."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    whole = degrees + t * t
    tail = _incomplete_beta(degrees / whole, t * t / whole, degrees / 2, 0.5) / 2
    return tail if t >= 0 else 1 - tail


@functools.cache
def t_quantile(probability: float, degrees: float) -> float:
    """Return the ``t`` that is exceeded with ``1 - probability``, which is from 0.5 to below 1."""
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
    """Return the regularised incomplete beta function of ``x = 1 - rest``.

    Abramowitz and Stegun 1964, 26.5.8; where ``x`` is large, of the mirrored function, whose
    fraction converges faster there.
    """
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(rest, x, b, a)
    log_front = a * math.log(x) + b * math.log(rest)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(log_front) / a / _continued_fraction(x, a, b)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Return 1 + d1 / (1 + d2 / (1 + ...)) by the modified method of Lentz (1976)."""
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
