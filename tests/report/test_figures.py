from __future__ import annotations

import math

import pytest

from hybridperf.report.tables import UNKNOWN, count, percent, ratio, seconds, seconds_range


@pytest.mark.parametrize(
    ("value", "text"),
    [(8.456, "8.46"), (999.994, "999.99"), (12_345.6, "12,346"), (3e12, "3e+12"), (-1.0, "-1.00")],
)
def test_seconds_have_decimals_where_they_matter(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize("form", [seconds, count, ratio, percent])
@pytest.mark.parametrize("value", [None, math.inf, -math.inf, math.nan])
def test_what_is_unknown_is_a_dash(form: object, value: float | None) -> None:
    assert callable(form)
    assert form(value) == UNKNOWN


def test_other_figures() -> None:
    assert count(9472.4) == "9,472"
    assert ratio(1.005 + 1e-9) == "1.01"
    assert percent(0.1234) == "12.3\N{NO-BREAK SPACE}%"
    assert seconds_range(1, 2.5) == "1.00\N{EN DASH}2.50"
