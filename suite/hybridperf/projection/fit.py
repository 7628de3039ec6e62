"""Fit latency and bandwidth to the measured times of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fit_line"]


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
