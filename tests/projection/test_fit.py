"""Latency and bandwidth, fitted to times of messages."""

from __future__ import annotations

import numpy as np
import pytest

from hybridperf.projection.profile import fit_line

SIZES = [1024 * 4**power for power in range(7)]


def test_a_line_is_found_exactly() -> None:
    intercept, slope = fit_line([(size, 30e-6 + size * 2e-10) for size in SIZES])

    assert intercept == pytest.approx(30e-6)
    assert slope == pytest.approx(2e-10)


def test_relative_errors_count_alike_at_all_sizes() -> None:
    """Noise of a tenth in the largest message would hide a latency from plain least squares."""
    generator = np.random.default_rng(0)
    noisy = [
        (size, (30e-6 + size * 2e-10) * (1 + 0.1 * generator.standard_normal())) for size in SIZES
    ]

    intercept, slope = fit_line(noisy)

    assert intercept == pytest.approx(30e-6, rel=0.2)
    assert slope == pytest.approx(2e-10, rel=0.2)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 1.0), (2, 4.0)], (0.0, 1.5 / 1.25)),  # its line has an intercept of -2
        ([(1, 4.0), (2, 1.0)], (1.25 / 1.0625, 0.0)),  # and a slope of -3
    ],
)
def test_neither_is_negative(
    points: list[tuple[float, float]], expected: tuple[float, float]
) -> None:
    assert fit_line(points) == pytest.approx(expected)


@pytest.mark.parametrize("points", [[(1, 1.0), (1, 2.0)], [(1, 0.0), (2, 1.0)]])
def test_what_has_no_line_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        fit_line(points)
