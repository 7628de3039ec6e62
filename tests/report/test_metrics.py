"""A metric is declared once, and every table follows."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import read_result
from hybridperf.report.board import boards
from hybridperf.report.frames import write_scores
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import leaderboard_markdown, leaderboard_page
from hybridperf.report.tables import (
    leaderboard_csv,
    leaderboard_json,
    metrics_markdown,
    score_rows,
)
from hybridperf.report.terminal import compared_text, scores_text
from hybridperf.score.compare import compare
from hybridperf.score.metrics import METRICS, Metric
from hybridperf.score.official import official_of
from tests.packages import VALID, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from tests.report.conftest import Submissions

NEW = Metric(
    "energy_kwh",
    "made-up energy",
    lambda result: result.score.runs[0].time_to_train_s * 1.5,
    unit="kWh",
    better="lower",
    heading="energy",
    form=".3f",
)


@pytest.fixture(autouse=True)
def energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, NEW.name, NEW)


def test_it_stands_in_the_leaderboard(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14])
    leaderboards = boards(read_entries(submissions.root))

    page = leaderboard_page(leaderboards)
    assert '<td class="number" data-key="15.0">15.000</td>' in page
    assert 'lower is better">energy</th>' in page
    markdown = leaderboard_markdown(leaderboards)
    assert "| energy |" in markdown
    assert "| 15.000 |" in markdown
    (row,) = csv.DictReader(io.StringIO(leaderboard_csv(leaderboards)))
    assert row["energy_kwh"] == "15.0"
    assert json.loads(leaderboard_json(leaderboards))["results"][0]["energy_kwh"] == 15.0


def test_it_stands_in_scores_and_comparisons(tmp_path: Path) -> None:
    official = official_of(read_result(write_result(tmp_path / "in")), VALID)

    assert "energy" in scores_text([official], 250).splitlines()[0]
    assert "15.000" in scores_text([official], 250)
    assert score_rows([official])[0]["energy_kwh"] == 15.0
    paths = write_scores(score_rows([official]), tmp_path / "out")
    assert all("energy_kwh" in path.read_text(encoding="latin-1") for path in paths)
    lines = compared_text(official, official, 80).splitlines()
    assert any(
        line.split() == ["energy", "15.000", "15.000", "lower", "is", "better"] for line in lines
    )
    side = compare(official, official).as_json()["a"]
    assert isinstance(side, dict)
    assert side["energy_kwh"] == 15.0


def test_it_stands_in_the_documentation() -> None:
    assert "| `energy_kwh` | made-up energy | kWh | lower |" in metrics_markdown().splitlines()
