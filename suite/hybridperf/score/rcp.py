"""Test convergence against reference convergence points (RCPs).

Source: MLPerf Training rules, section 13.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hybridperf.score.olympic import fewest_runs, olympic_mean, too_many_missed
from hybridperf.score.rcp_points import between, limit, prune, reference_point

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.score.rcp_points import Point, RcpTest, Reference

__all__ = ["Mode", "Verdict", "judge"]

#: ``rules``: computed by the MLPerf Training rules; ``compat``: computed like the official tool of
#: the round; ``published``: taken from the files that a round published with its logs
Mode = Literal["rules", "compat", "published"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of the RCP test; if untestable, ``passed`` is None and ``how`` is the reason."""

    passed: bool | None
    how: str
    factor: float | None = None  #: multiplies the olympic mean time
    mean: float | None = None  #: olympic mean of the result
    reference_mean: float | None = None
    limit: float | None = None  #: lowest mean that passes

    @property
    def reason(self) -> str:
        """Return the reason for the lack of an official score."""
        fast = self.passed is False and self.limit is not None
        return f"converges faster than the reference allows ({self.how})" if fast else self.how

    @property
    def words(self) -> str:
        """Return the outcome in words, such as ``passes with 1.0325``."""
        if self.passed is None:
            return "not tested"
        return f"passes with {self.factor:.4f}" if self.passed else "fails"


def judge(
    references: Sequence[Reference], batch_size: int, amounts: Sequence[float], test: RcpTest
) -> Verdict:
    """Test the convergence of a result against ``references``.

    ``amounts`` are the epochs or samples to target [run], ``math.inf`` for a run that missed.
    """
    if (fewest := min(len(amounts), test.runs)) < fewest_runs(test.drops):
        return Verdict(None, f"{fewest} runs, and the test takes {fewest_runs(test.drops)} or more")
    mean = olympic_mean(amounts, test.drops)
    if math.isinf(mean):
        return Verdict(False, too_many_missed(test.drops))
    points = prune([reference_point(each, test) for each in references], test)
    point, how = _find(points, batch_size, test)
    if point is None:  # the rules ask for a point, and the official tool fails the result
        return Verdict(False if test.tool else None, how, mean=mean)
    lowest = limit(point, test)
    passed = mean >= lowest
    if point.batch_size > batch_size and not passed:
        how = f"no reference point at batch size {batch_size}: supply one, or keep to the smallest"
    # Rules, section 13: a passing result that converges faster than the reference is normalised.
    factor = max(1.0, point.mean / mean) if mean > 0 else None
    return Verdict(passed, how, factor, mean, point.mean, lowest)


def _find(points: Sequence[Point], batch_size: int, test: RcpTest) -> tuple[Point | None, str]:
    below = [point for point in points if point.batch_size <= batch_size]
    above = [point for point in points if point.batch_size >= batch_size]
    if below and below[-1].batch_size == batch_size:
        return below[-1], "reference point at this batch size"
    if below and above:
        return between(below[-1], above[0], batch_size, test), "interpolated"
    if above:
        return above[0], "slower than the reference point of the smallest batch size"
    return None, f"no reference point at or above batch size {batch_size}; one must be supplied"
