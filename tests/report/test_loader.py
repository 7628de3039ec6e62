from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import leaderboard_markdown, leaderboard_page
from hybridperf.report.tables import loader_sentence
from hybridperf.report.terminal import scores_text

if TYPE_CHECKING:
    from tests.report.conftest import Submissions

SLOW = {"loader_samples_per_s": 1234.4, "compute_samples_per_s": 5000.0}
FAST = {"loader_samples_per_s": 80.0, "compute_samples_per_s": 12.34}
_SAYS = "the loaders could deliver {} samples/s, training could consume {}"


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        (SLOW, f"{_SAYS.format('1,234', '5,000')}: the loaders are the bottleneck."),
        (FAST, f"{_SAYS.format('80', '12.3')}: the loaders keep up."),
    ],
)
def test_the_loaders_are_said_beside_what_training_takes(
    submissions: Submissions, rates: dict[str, float], sentence: str
) -> None:
    submissions.add([10, 11, 12, 13, 14], rates=rates)
    entries = read_entries(submissions.root)

    assert loader_sentence(entries[0].score) == sentence
    assert f"dp=2: {sentence}" in scores_text([entries[0].official], 200).splitlines()
    assert f">laptop: {sentence}<" in leaderboard_page(boards(entries))
    assert f"- acme, laptop: {sentence}" in leaderboard_markdown(boards(entries)).splitlines()


@pytest.mark.parametrize("rates", [{}, {"loader_samples_per_s": 3.0}])
def test_where_logs_do_not_say_both_nothing_is_said(
    submissions: Submissions, rates: dict[str, float]
) -> None:
    submissions.add([10, 11, 12, 13, 14], rates=rates)
    entries = read_entries(submissions.root)

    assert loader_sentence(entries[0].score) is None
    assert "loaders" not in scores_text([entries[0].official], 200)
    assert "loaders" not in leaderboard_page(boards(entries))
    assert "loaders" not in leaderboard_markdown(boards(entries))
