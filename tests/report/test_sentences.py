"""What terminal and page say of a leaderboard: its fastest result against one process."""

from __future__ import annotations

import html
import shlex
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import find_packages
from hybridperf.report.board import boards
from hybridperf.report.judgement import judged_entries, read_entries
from hybridperf.report.page import leaderboard_page
from hybridperf.report.sentences import board_sentence, fastest_pair, next_commands
from hybridperf.report.tables import p_value
from hybridperf.score.compare import compare
from tests.report.conftest import SYSTEM

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.report.board import Board
    from tests.report.conftest import Submissions

FAST, SLOW = [10.0, 10.1, 10.2, 10.1, 10.0], [20.0, 20.1, 20.2, 20.1, 20.0]
NAME = "resnet/laptop"


def _board(submissions: Submissions) -> Board:
    (board,) = boards(read_entries(submissions.root))
    return board


@pytest.mark.parametrize(
    ("one_s", "hybrid_s", "sentence"),
    [
        (FAST, SLOW, "one process is faster than dp=2, 10.08 s against 20.08 s, p < 0.001"),
        (SLOW, FAST, "dp=2 is faster than one process, 10.08 s against 20.08 s, p < 0.001"),
        (
            [10.0],
            [11.0],
            "one process (provisional) and dp=2 (provisional): undecided, 10.00 s against",
        ),
        ([10.0], [], "one process (provisional) takes 10.00 s; no result of a hybrid plan"),
        ([], FAST, "dp=2 takes 10.08 s; no result of one process"),
    ],
)
def test_a_sentence_says_whether_the_fastest_plan_beats_one_process(
    submissions: Submissions, one_s: list[float], hybrid_s: list[float], sentence: str
) -> None:
    if one_s:
        submissions.add(one_s, system="one", plan="dp=1")
    if hybrid_s:
        submissions.add(hybrid_s, system="hybrid", plan="dp=2")

    assert board_sentence(_board(submissions)).startswith(f"{NAME}: {sentence}")


def test_a_tie_is_said_with_the_p_value_of_compare(submissions: Submissions) -> None:
    folders = [
        submissions.add([10, 12, 14, 16, 18], system="one", plan="dp=1"),
        submissions.add([11, 13, 15, 16, 18], system="hybrid", plan="dp=2"),
    ]
    sentence = board_sentence(_board(submissions))

    packages = [package for folder in folders for package in find_packages(folder)]
    a, b = (entry.official for entry in judged_entries(packages))
    test = compare(a, b).decision.test
    assert test is not None
    assert sentence == (
        f"{NAME}: one process and dp=2 tie, 14.00 s against 14.60 s, {p_value(test.p_value)}."
    )


def test_a_result_without_all_its_runs_or_on_other_devices_is_no_opposite(
    submissions: Submissions,
) -> None:
    gpus = SYSTEM | {"accelerators_per_node": "8", "accelerator_model_name": "A100"}
    submissions.add([9.0, 9.1, 9.2, 9.1, 9.0], system="gpus", plan="dp=8", description=gpus)
    submissions.add(SLOW, system="one", plan="dp=1")
    assert [each.score.plan for each in fastest_pair(_board(submissions))] == ["dp=8"]

    submissions.add([15.0], system="early", plan="dp=1", description=gpus)
    submissions.add([30.0, 30.1, 30.2, 30.1, 30.0], system="gpu", plan="dp=1", description=gpus)
    systems = [each.score.system for each in fastest_pair(_board(submissions))]
    assert systems == ["gpus", "gpu"]


def test_results_that_all_missed_have_no_time(submissions: Submissions) -> None:
    missed = dict.fromkeys(range(1, 6), "target_missed")
    submissions.add(FAST, outcomes=missed)

    assert board_sentence(_board(submissions)) == f"{NAME}: no result has a time."


def test_the_page_says_the_sentence_of_the_terminal(submissions: Submissions) -> None:
    submissions.add(FAST, system="one", plan="dp=1")
    submissions.add(SLOW, system="hybrid", plan="dp=2")
    board = _board(submissions)

    assert board_sentence(board) in html.unescape(leaderboard_page([board]))


def test_next_commands_compare_the_pair_show_the_page_and_plan_eight_gpus(
    submissions: Submissions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = submissions.add(FAST, system="one", plan="dp=1")
    hybrid = submissions.add(SLOW, system="hybrid", plan="dp=2")
    monkeypatch.chdir(tmp_path)

    compared, shown, planned = (
        shlex.split(command, comments=True)
        for command in next_commands([_board(submissions)], tmp_path / "a report" / "index.html")
    )

    assert compared[1:] == ["compare", *(str(each.relative_to(tmp_path)) for each in (one, hybrid))]
    assert shown[1:] == ["a report/index.html"]
    assert planned[1:4] == ["plan", "resnet/workstation", "--devices"]
