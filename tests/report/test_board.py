from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.findings import Finding
from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from tests.report.conftest import judge_by

if TYPE_CHECKING:
    import pytest

    from hybridperf.log.package import Result
    from tests.report.conftest import Submissions


def test_rows_stand_by_time_and_only_finished_results_are_ranked(submissions: Submissions) -> None:
    submissions.add([20, 21, 22, 23, 24], system="slow")
    submissions.add([10, 11, 12, 13, 14], system="fast")
    submissions.add([1, 2, 3], system="early")
    submissions.add([5] * 5, system="missing", outcomes={1: "target_missed", 2: "target_missed"})

    (board,) = boards(read_entries(submissions.root))

    rows = [
        (row.entry.score.system, str(row.entry.official.place), row.entry.standing)
        for row in board.rows
    ]
    assert rows == [
        ("fast", "1", "ranked"),
        ("slow", "2", "ranked"),
        ("early", "None", "provisional"),
        ("missing", "None", "missed"),
    ]
    assert board.metric == "top-1 accuracy"
    assert board.target == 0.98


def test_an_invalid_result_is_apart_and_ranks_nobody(
    submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    submissions.add([10, 11, 12, 13, 14], system="honest")
    submissions.add([1, 1, 1, 1, 1], system="cheat")
    submissions.add([9, 9, 9], system="short")
    rules = {"cheat": "log.chain", "short": "result.run_count"}

    def check(result: Result) -> list[Finding]:
        rule = rules.get(result.package.system)
        return [Finding(rule, "honesty", "none", "be honest")] if rule else []

    judge_by(monkeypatch, check)

    (board,) = boards(read_entries(submissions.root))

    assert [entry.score.system for entry in board.invalid] == ["cheat"]
    assert [(row.entry.score.system, str(row.entry.official.place)) for row in board.rows] == [
        ("honest", "1"),
        ("short", "None"),
    ]
    assert [row.entry.valid for row in board.rows] == [True, False]


def test_other_versions_stand_on_other_boards(submissions: Submissions) -> None:
    submissions.add([10, 11, 12], system="old", manifest={"task": {"version": 1}})
    submissions.add([10, 11, 12], system="new", manifest={"task": {"version": 2}})

    assert [board.version for board in boards(read_entries(submissions.root))] == ["1", "2"]


def test_an_anchor_depends_on_the_board_alone(submissions: Submissions) -> None:
    submissions.add([10, 11, 12], system="old")
    (alone,) = boards(read_entries(submissions.root))
    submissions.add([10, 11, 12], system="new", manifest={"task": {"version": 2}})
    submissions.add([10, 11, 12], system="own", task="my-model")

    anchors = {board.version: board.anchor for board in boards(read_entries(submissions.root))}

    assert alone.anchor == "resnet-laptop-closed"
    assert anchors.pop("1") == alone.anchor
    assert anchors.pop("2") == "resnet-laptop-closed-2"
    (anchor,) = anchors.values()
    assert anchor.startswith("board-my-model-closed-1-")


def test_the_first_result_is_compared_with_one_process_and_the_runner_up(
    submissions: Submissions,
) -> None:
    submissions.add([10, 11, 12, 13, 14], system="fast", plan="dp=4")
    submissions.add([30, 31, 32, 33, 34], system="second", plan="dp=2")
    submissions.add([60, 61, 62, 63, 64], system="one", plan="dp=1")
    other = {"accelerator_model_name": "H100", "accelerators_per_node": "1"}
    submissions.add([20, 21, 22, 23], system="other", plan="dp=1", description=other)

    (board,) = boards(read_entries(submissions.root))

    assert board.fastest is board.rows[0]
    assert board.runner_up is board.rows[1]
    assert board.one_process is not None
    assert board.one_process.entry.score.system == "one"
    assert board.one_process.decision.verdict == "slower"


def test_a_board_without_times_has_no_fastest_result(submissions: Submissions) -> None:
    outcomes = dict.fromkeys(range(1, 6), "target_missed")
    submissions.add([10, 11, 12, 13, 14], outcomes=outcomes)

    (board,) = boards(read_entries(submissions.root))

    assert (board.fastest, board.runner_up, board.one_process) == (None, None, None)
    assert [row.missed for row in board.rows] == [True]
