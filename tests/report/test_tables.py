from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.tables import leaderboard_csv, leaderboard_json
from hybridperf.score.metrics import METRICS

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


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

    assert float(row["olympic_mean_s"]) == -12
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
    assert made["results"][0]["olympic_mean_s"] == 12
    assert made["results"][1]["olympic_mean_s"] is None
    assert made["results"][0]["findings"] == []
