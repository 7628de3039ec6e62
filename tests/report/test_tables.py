from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING

import pytest

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.tables import (
    UNKNOWN,
    count,
    leaderboard_csv,
    leaderboard_json,
    percent,
    ratio,
    seconds,
    seconds_range,
)
from hybridperf.score.metrics import METRICS

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


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


def _rows(submissions: Submissions) -> list[dict[str, str]]:
    text = leaderboard_csv(boards(read_entries(submissions.root)))
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"])
def test_text_that_looks_like_a_formula_gets_an_apostrophe(
    submissions: Submissions, first: str
) -> None:
    submissions.add([10, 11, 12], plan=f"{first}HYPERLINK(1)", system="=cmd")
    (row,) = _rows(submissions)

    assert row["plan"].startswith("'")
    assert row["plan"].endswith("HYPERLINK(1)")
    assert row["system"] == "'=cmd"


def test_numbers_stay_numbers(submissions: Submissions) -> None:
    submissions.add([-10, -11, -12, -13, -14])
    (row,) = _rows(submissions)

    assert float(row["mean_s"]) == -12
    assert row["required_runs"] == "5"
    assert (row["place_best"], row["valid"], row["findings"]) == ("", "true", "0")
    assert row["no_place"] == "by its logs, it took no time"


def test_json_holds_the_same_columns(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14])
    submissions.add([10, 11], system="short")
    made = json.loads(leaderboard_json(boards(read_entries(submissions.root))))

    assert [set(row) for row in made["results"]] == [
        {*METRICS, "standing", "valid", "findings"}
    ] * 2
    assert made["results"][0]["mean_s"] == 12
    assert made["results"][1]["mean_s"] == 10.5
    assert made["results"][0]["findings"] == []
