"""Which reference convergence points a result is held to: none slower than its neighbours allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suite.scores.rcp import Mode, Point

__all__ = ["prune"]


def prune(points: Sequence[Point], mode: Mode) -> list[Point]:
    """Return the points from the fastest on that lie on the lower convex envelope, by batch size.

    ``rules``: the envelope of (batch size, mean) itself (MLPerf Training rules, section 13);
    Andrew's monotone chain. ``compat``: what the official tool (4.1.59) keeps of it in one pass
    that goes back by one point only, which may be more.
    """
    ranked = sorted(points, key=lambda point: point.batch_size)
    fastest = min(ranked, key=lambda point: point.mean, default=None)
    kept = [point for point in ranked if fastest and point.batch_size >= fastest.batch_size]
    return _single_pass(kept) if mode == "compat" else _envelope(kept)


def _envelope(points: Sequence[Point]) -> list[Point]:
    kept: list[Point] = []
    for point in points:
        while len(kept) > 1 and _above(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _single_pass(points: Sequence[Point]) -> list[Point]:
    # The next comparison has the new neighbour on its left, but never looks further back.
    kept = list(points)
    index = 1
    while index < len(kept) - 1:
        if _above(kept[index - 1], kept[index], kept[index + 1]):
            del kept[index]
        else:
            index += 1
    return kept


def _above(low: Point, middle: Point, high: Point) -> bool:
    """Tell whether ``middle`` lies above the straight line between the other two."""
    share = (middle.batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return middle.mean > low.mean + share * (high.mean - low.mean)
