"""The page shows the text of `hybridperf compare`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from hybridperf.cli.main import main
from hybridperf.report.board import boards
from hybridperf.report.comparison import incomparable
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import leaderboard_page

if TYPE_CHECKING:
    import pytest

    from tests.report.conftest import Submissions


def test_the_page_holds_the_text_of_compare(
    submissions: Submissions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    slow = submissions.add([20, 21, 22, 23, 24], system="slow", manifest={"overrides": {"a": 1}})
    fast = submissions.add([10, 11, 12, 13, 14], system="fast", plan="dp=1")
    (board,) = boards(read_entries(submissions.root))

    page = leaderboard_page([board])
    main(["compare", str(fast), str(slow)])

    held = re.search(r'<script type="application/json" id="comparisons">(.*)</script>', page)
    assert held is not None
    first, second = (row.entry.anchor for row in board.rows)
    text = json.loads(held[1])["results"][first][second]
    assert text == capsys.readouterr().out.rstrip("\n")
    assert "differs: plan: dp=1 / dp=2" in text
    assert 'differs: overrides: none / {"a": 1}' in text


def test_results_of_other_tasks_versions_and_data_are_not_compared(
    submissions: Submissions,
) -> None:
    submissions.add([10, 11, 12], system="a")
    submissions.add([10, 11, 12], system="b", task="vgg/laptop")
    submissions.add([10, 11, 12], system="c", manifest={"task": {"version": 2}})
    submissions.add([10, 11, 12], system="d", manifest={"data_sha256": "e" * 64})
    first, *others = sorted(read_entries(submissions.root), key=lambda entry: entry.score.system)

    rules = [
        finding and finding.rule for other in others if (finding := incomparable(first, other))
    ]

    assert rules == ["compare.benchmark", "compare.benchmark", "compare.data"]
    assert incomparable(first, first) is None
