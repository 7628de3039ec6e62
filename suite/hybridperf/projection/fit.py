"""Fit latency and bandwidth to measured times of messages, and coefficients to other times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fit_line", "fit_plane"]


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the intercept and the slope of a line through ``points`` (x, y), neither negative.

    The squares of relative errors are least, so that small messages count as much as large ones.

    Raises:
        ValueError: if there are fewer than two different x, or a y that is not positive.
    """
    x, y = np.array(points, dtype=np.float64).T
    if len(set(x.tolist())) < 2 or (y <= 0).any():
        raise ValueError("expected two different sizes or more, all with positive times")
    columns = np.stack([1 / y, x / y], axis=1)
    (intercept, slope), *_ = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)
    if intercept >= 0 and slope >= 0:
        return float(intercept), float(slope)
    # With one of them 0, the other minimises the same sum.
    alone = columns.sum(axis=0) / (columns**2).sum(axis=0)
    return (0.0, float(alone[1])) if intercept < 0 else (float(alone[0]), 0.0)


def fit_plane(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Return coefficients, none negative, whose products with ``rows`` come close to ``values``.

    The squares of errors are least among the coefficients that are not 0; while one of these would
    be negative, the one that most decreases the sum is set to 0.
    """
    matrix, wanted = np.array(rows, dtype=np.float64), np.array(values, dtype=np.float64)
    found, free = np.zeros(matrix.shape[1]), list(range(matrix.shape[1]))
    scale = np.abs(matrix).max(axis=0)  # so that small columns count as much as large ones
    while free:
        solved, *_ = np.linalg.lstsq(matrix[:, free] / scale[free], wanted, rcond=None)
        if (solved >= 0).all():
            found[free] = solved / scale[free]
            break
        free.pop(int(solved.argmin()))
    return [float(each) for each in found]
