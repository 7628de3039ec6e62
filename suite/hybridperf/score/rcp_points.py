"""Make points of reference runs, and prune them to those that a result is compared with.

Source: MLPerf Training rules, section 13.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.score.welch import t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hybridperf.tasks.mlperf import OfficialTool

__all__ = [
    "Point",
    "RcpTest",
    "Reference",
    "between",
    "limit",
    "prune",
    "reference_point",
]

_ALPHA: Final = 0.05


@dataclass(frozen=True, slots=True)
class RcpTest:
    """How convergence is tested: by the rules, or like the official tool of a round."""

    runs: int  #: of a result
    drops: int  #: runs that the olympic mean leaves out at either end
    grace: float = 0.0  #: amount by which the limit may be missed
    tool: OfficialTool | None = None  #: None: by the rules

    @property
    def scored(self) -> int:
        """Return the sample size of the result.

        The official tool takes two runs from it, also where the mean leaves out more.
        """
        return self.runs - 2 * (1 if self.tool else self.drops)


@dataclass(frozen=True, slots=True)
class Reference:
    """Epochs or samples to convergence of the reference runs at one batch size."""

    batch_size: int
    amounts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A reference convergence point, measured or interpolated between two measured ones."""

    batch_size: int
    mean: float  #: olympic mean
    stdev: float
    runs: int  #: sample size used in the test


def reference_point(reference: Reference, test: RcpTest) -> Point:
    """Return the mean and standard deviation of the reference runs as a point.

    By the rules both exclude the fastest and slowest runs, and the standard deviation is that of a
    population (divisor n), which reproduces the 0.43 and 0.66 of the appendix "RCP Examples".
    Official tools from v4.1 on take that of all runs, which loosens the limit.
    """
    inner = sorted(reference.amounts)[test.drops : len(reference.amounts) - test.drops]
    of_all = test.tool is not None and test.tool.deviation_of == "all"
    return Point(
        reference.batch_size,
        statistics.fmean(inner),
        statistics.pstdev(reference.amounts if of_all else inner),
        len(inner),
    )


def limit(point: Point, test: RcpTest) -> float:
    """Return the lowest mean that passes.

    One-sided two-sample t test with a common standard deviation at a 5 % significance level.
    """
    t = t_quantile(1 - _ALPHA, test.scored + point.runs - 2)
    spread = t * point.stdev * math.sqrt(1 / test.scored + 1 / point.runs)
    return point.mean - spread - test.grace


def between(low: Point, high: Point, batch_size: int, test: RcpTest) -> Point:
    """Interpolate linearly between two points; the sample size is that of a complete reference."""
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return Point(
        batch_size,
        low.mean + share * (high.mean - low.mean),
        low.stdev + share * (high.stdev - low.stdev),
        2 * test.runs,
    )


def prune(points: Sequence[Point], test: RcpTest) -> list[Point]:
    """Prune ``points`` to those from the fastest one on that count, sorted by batch size.

    By the rules, that is the lower convex hull of (batch size, mean), by Andrew's monotone chain.
    Official tools before v2.0 keep all points; later ones make a single pass, which backtracks by
    one point at most and so may keep points above the hull.
    """
    in_order = sorted(points, key=lambda point: point.batch_size)
    if test.tool is None:
        return _envelope(_from_fastest(in_order, _mean), test)
    if test.tool.pruned_by == "nothing":
        return in_order
    figure = _mean if test.tool.pruned_by == "mean" else lambda point: limit(point, test)
    return _single_pass(_from_fastest(in_order, figure), test, figure)


def _mean(point: Point) -> float:
    return point.mean


def _from_fastest(points: Sequence[Point], figure: Callable[[Point], float]) -> list[Point]:
    fastest = min(points, key=figure, default=None)
    return [point for point in points if fastest and point.batch_size >= fastest.batch_size]


def _envelope(points: Sequence[Point], test: RcpTest) -> list[Point]:
    kept: list[Point] = []
    for point in points:
        while len(kept) > 1 and _above(kept[-2], kept[-1], point, test, _mean):
            kept.pop()
        kept.append(point)
    return kept


def _single_pass(
    points: Sequence[Point], test: RcpTest, figure: Callable[[Point], float]
) -> list[Point]:
    # Like the official tool, compare with the new left neighbour, but backtrack no further.
    kept = list(points)
    index = 1
    while index < len(kept) - 1:
        if _above(kept[index - 1], kept[index], kept[index + 1], test, figure):
            del kept[index]
        else:
            index += 1
    return kept


def _above(
    low: Point, middle: Point, high: Point, test: RcpTest, figure: Callable[[Point], float]
) -> bool:
    """Tell whether the ``figure`` of ``middle`` is above that interpolated at its batch size."""
    return figure(middle) > figure(between(low, high, middle.batch_size, test))
