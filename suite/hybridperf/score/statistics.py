"""Means and olympic means with intervals, Welch's test of means and Fieller's interval of ratios.

Student's t distribution is implemented here because scipy would be the largest dependency of
scoring and reporting; tests require agreement with scipy within 1e-8.
"""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "FEWEST_OF_INTERVAL",
    "MEAN_INTERVAL",
    "OLYMPIC_INTERVAL",
    "RATIO_INTERVAL",
    "WELCH_TEST",
    "Estimate",
    "Interval",
    "Welch",
    "estimate",
    "fewest_runs",
    "mean_interval",
    "median_window",
    "olympic_mean",
    "ratio_interval",
    "scored",
    "t_quantile",
    "t_tail",
    "too_many_missed",
    "welch",
]

FEWEST_OF_INTERVAL: Final = 5  #: of fewer runs a spread is hardly known
MEAN_INTERVAL: Final = (
    f"95 % interval of the mean by Student's t; none for fewer than {FEWEST_OF_INTERVAL} runs"
)
OLYMPIC_INTERVAL: Final = (
    "95 % interval of the olympic mean by Student's t of the winsorised times (Tukey and "
    f"McLaughlin); none for fewer than {FEWEST_OF_INTERVAL} runs"
)
RATIO_INTERVAL: Final = "95 % interval of the ratio of means, which inverts Welch's test (Fieller)"
WELCH_TEST: Final = "Welch's t test of the mean times, two-sided"
_LEVEL: Final = 0.95
_TINY: Final = 1e-300
_EPSILON: Final = 1e-16
_MOST_TERMS: Final = 10_000


def fewest_runs(drops: int) -> int:
    """Return the least number of runs that have an olympic mean."""
    return 2 * drops + 1


def too_many_missed(drops: int) -> str:
    """Return in words why a result has no finite olympic mean."""
    return f"more than {'one run' if drops == 1 else f'{drops} runs'} missed the target"


def scored(times_s: Sequence[float], drops: int) -> list[int]:
    """Return the indices of the scored runs: all but the ``drops`` fastest and slowest ones.

    ``times_s`` are times to train in seconds [run], ``math.inf`` for runs that missed the target,
    which makes them the slowest. Source: MLPerf Training rules, section 12.1.

    Raises:
        ValueError: if there are fewer than `fewest_runs`.
    """
    if len(times_s) < fewest_runs(drops):
        least = fewest_runs(drops)
        raise ValueError(f"an olympic mean takes at least {least} runs, got {len(times_s)}")
    in_order = sorted(range(len(times_s)), key=lambda index: times_s[index])
    return sorted(in_order[drops : len(times_s) - drops])


def olympic_mean(times_s: Sequence[float], drops: int) -> float:
    """Return the mean of the `scored` times; infinite if more than ``drops`` runs missed.

    Raises:
        ValueError: as `scored`.
    """
    return statistics.fmean(times_s[index] for index in scored(times_s, drops))


def median_window(times_s: Sequence[float], runs: int, drops: int) -> range:
    """Return the indices of the ``runs`` consecutive runs whose olympic mean is the median.

    ``times_s`` are times to train in seconds [run], sorted by run start, ``math.inf`` for runs that
    missed the target. With an even number of windows, the slower of the two middle ones is taken;
    ties go to the first window. Returns all indices if there are at most ``runs`` times, or too few
    for an olympic mean. Source: MLPerf Training rules, Benchmark Results, Scoring.
    """
    if len(times_s) <= runs or runs < fewest_runs(drops):
        return range(len(times_s))
    scores = [
        olympic_mean(times_s[start : start + runs], drops)
        for start in range(len(times_s) - runs + 1)
    ]
    start = scores.index(sorted(scores)[len(scores) // 2])
    return range(start, start + runs)


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, in the unit of the estimate."""

    low: float
    high: float  #: infinite if unbounded


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of independent values, and the variance of the mean."""

    mean: float
    variance: float
    degrees: float  #: degrees of freedom of the variance
    values: int  #: number of values, the dropped ones included


def estimate(values: Sequence[float], drops: int = 0) -> Estimate | None:
    """Return the mean of ``values`` [run] without the ``drops`` smallest and largest ones.

    The variance of a trimmed mean is of the winsorised values (Yuen 1974), in which the dropped
    values equal the nearest kept one: so up to ``drops`` of ``values`` may be infinite. Returns
    None for fewer than two kept values, or if a kept one is infinite.
    """
    in_order, count = sorted(values), len(values)
    kept = in_order[drops : count - drops]
    if len(kept) < 2 or math.isinf(kept[-1]):
        return None
    winsorised = [kept[0]] * drops + kept + [kept[-1]] * drops
    squares = statistics.variance(winsorised) * (count - 1)
    free = len(kept) - 1
    return Estimate(statistics.fmean(kept), squares / (len(kept) * free), free, count)


def mean_interval(one: Estimate | None) -> Interval | None:
    """Return the 95 % interval of a mean of positive values, by Student's t.

    The interval of a trimmed mean is that of Tukey and McLaughlin 1963. Returns None for fewer
    than `FEWEST_OF_INTERVAL` values.
    """
    if one is None or one.values < FEWEST_OF_INTERVAL:
        return None
    half = t_quantile((1 + _LEVEL) / 2, one.degrees) * math.sqrt(one.variance)
    return Interval(max(0.0, one.mean - half), one.mean + half)


@dataclass(frozen=True, slots=True)
class Welch:
    """The statistic, degrees of freedom and two-sided p-value of Welch's t test."""

    t: float
    degrees: float
    p_value: float


def welch(one: Estimate | None, other: Estimate | None, scale: float = 1.0) -> Welch | None:
    """Test whether the mean of ``other`` is ``scale`` times the mean of ``one`` (Welch 1947).

    Returns None if one is unknown, or if both variances are zero.
    """
    if one is None or other is None:
        return None
    first, second = scale**2 * one.variance, other.variance
    if first + second <= 0:
        return None
    t = (other.mean - scale * one.mean) / math.sqrt(first + second)
    # Satterthwaite 1946; normalised to shares, whose squares do not underflow.
    shares = first / (first + second), second / (first + second)
    degrees = 1 / (shares[0] ** 2 / one.degrees + shares[1] ** 2 / other.degrees)
    return Welch(t, degrees, min(1.0, 2 * t_tail(abs(t), degrees)))


def ratio_interval(one: Estimate | None, other: Estimate | None) -> Interval | None:
    """Return the 95 % confidence interval of the mean of ``other`` over the mean of ``one``.

    Inverts Welch's test (Fieller 1954), so it contains 1 exactly if the means do not differ
    significantly. Returns None if there is no test, or if the interval is unbounded.
    """
    if one is None or other is None or welch(one, other) is None or min(one.mean, other.mean) <= 0:
        return None
    ratio = other.mean / one.mean

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

    Uses the continued fraction of Abramowitz and Stegun 1964, 26.5.8, of the reflected function
    for large ``x``, where it converges faster.
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
