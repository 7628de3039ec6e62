"""Reference convergence points: a result may not converge faster than the reference does."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from suite.scores.envelope import prune
from suite.scores.olympic import olympic_mean
from suite.scores.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Mode", "Point", "Reference", "Verdict", "judge", "limit", "reference_point"]

#: ``rules``: as the MLPerf Training rules say; ``compat``: as the official tool 4.1.59 computes;
#: ``published``: not computed, but what a round published with its logs
Mode = Literal["rules", "compat", "published"]
_ALPHA: Final = 0.05


@dataclass(frozen=True, slots=True)
class Reference:
    """What runs of the reference took to converge, in epochs or samples, at one batch size."""

    batch_size: int
    amounts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A reference convergence point: measured, or interpolated between two that are."""

    batch_size: int
    mean: float  #: olympic
    stdev: float
    runs: int  #: that enter the test


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the test says; where it cannot be made, ``passed`` is None and ``how`` says why."""

    passed: bool | None
    how: str
    factor: float | None = None  #: by which the time is multiplied
    mean: float | None = None  #: of the result, olympic
    reference_mean: float | None = None
    limit: float | None = None  #: the lowest mean that passes

    @property
    def reason(self) -> str:
        """Return why there is no official score."""
        fast = self.passed is False and self.limit is not None
        return f"converges faster than the reference allows ({self.how})" if fast else self.how


def reference_point(reference: Reference, mode: Mode) -> Point:
    """Return mean and standard deviation of the reference's runs.

    Rules, appendix "RCP Examples": both are of the runs without the fastest and the slowest, and
    0.43 and 0.66 come out only with the divisor n. The official tool takes the standard deviation
    of all runs, which loosens the limit.
    """
    inner = sorted(reference.amounts)[1:-1]
    spread = inner if mode != "compat" else reference.amounts
    return Point(
        reference.batch_size,
        math.fsum(inner) / len(inner),
        statistics.pstdev(spread),
        len(inner),
    )


def limit(point: Point, submission_runs: int) -> float:
    """Return the lowest mean of a result of ``submission_runs`` runs that is not too fast.

    A one-sided t test for two samples that share a standard deviation, at 5 % (rules, section 13).
    """
    scored = submission_runs - 2
    t = t_quantile(1 - _ALPHA, scored + point.runs - 2)
    return point.mean - t * point.stdev * math.sqrt(1 / scored + 1 / point.runs)


def judge(
    references: Sequence[Reference],
    batch_size: int,
    amounts: Sequence[float],
    submission_runs: int,
    mode: Mode,
) -> Verdict:
    """Test the ``amounts`` that a result's runs took, infinite where a run missed its target."""
    if len(amounts) < 3:
        return Verdict(None, f"{len(amounts)} runs, and the test takes 3 or more")
    mean = olympic_mean(amounts)
    if math.isinf(mean):
        return Verdict(False, "more than one run missed its target")
    points = prune([reference_point(each, mode) for each in references], mode)
    point, how = _find(points, batch_size, submission_runs)
    if point is None:
        return Verdict(None, how, mean=mean)
    lowest = limit(point, submission_runs)
    passed = mean >= lowest
    if point.batch_size > batch_size and not passed:
        how = f"no reference point at batch size {batch_size}: supply one, or keep to the smallest"
    # Rules, section 13: a result that passes and converges faster than the reference is slowed.
    factor = max(1.0, point.mean / mean) if mean > 0 else None
    return Verdict(passed, how, factor, mean, point.mean, lowest)


def _find(points: Sequence[Point], batch_size: int, runs: int) -> tuple[Point | None, str]:
    below = [point for point in points if point.batch_size <= batch_size]
    above = [point for point in points if point.batch_size >= batch_size]
    if below and below[-1].batch_size == batch_size:
        return below[-1], "reference point at this batch size"
    if below and above:
        return _between(below[-1], above[0], batch_size, 2 * runs), "interpolated"
    if above:
        return above[0], "slower than the reference point of the smallest batch size"
    return None, f"no reference point at or above batch size {batch_size}; one must be supplied"


def _between(low: Point, high: Point, batch_size: int, runs: int) -> Point:
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return Point(
        batch_size,
        low.mean + share * (high.mean - low.mean),
        low.stdev + share * (high.stdev - low.stdev),
        runs,
    )
