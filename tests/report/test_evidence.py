from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import find_results, read_result
from hybridperf.report.evidence import (
    attempts_of,
    evidence_of,
    hashes_of,
    reproduce_commands,
)
from hybridperf.report.judgement import found_packages, judged_entries, read_entries
from hybridperf.report.svg import draw_strip, strip_scale
from tests.score.made_up_round import judge_made_up, log_lines, write_round

if TYPE_CHECKING:
    from pathlib import Path

    from tests.report.conftest import Submissions


def test_every_attempt_says_whether_it_counts_or_why_not(submissions: Submissions) -> None:
    outcomes = {2: "interrupted", 5: "target_missed"}
    submissions.add([10, 11, 12, 13, 14], outcomes=outcomes)
    (entry,) = read_entries(submissions.root)

    roles = [attempt.role for attempt in attempts_of(entry)]

    assert roles == [
        "counts",
        "did not complete: it was interrupted",
        "counts",
        "counts",
        "counts as a lower bound",
    ]
    assert [attempt.epochs for attempt in attempts_of(entry)] == [8, 4, 8, 8, 8]


def test_more_runs_than_required_all_count(submissions: Submissions) -> None:
    submissions.add([10, 20, 30, 40, 50, 60, 70])
    (entry,) = read_entries(submissions.root)

    assert [attempt.role for attempt in attempts_of(entry)] == ["counts"] * 7


def test_a_run_with_an_invalid_log_did_not_miss_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge_made_up(monkeypatch)
    logs = [log_lines(1000.0 + 10 * run) for run in range(9)]
    write_round(tmp_path / "training_results_v8.0", [*logs, log_lines(1000.0, status="aborted")])
    (entry,) = judged_entries(found_packages([tmp_path]))

    *_, last = attempts_of(entry)
    drawn = draw_strip(entry.score, strip_scale([entry.score]))

    assert last.outcome == "its log is invalid"
    assert last.role.startswith("dropped as slowest: its log is invalid: mlperf.target")
    assert "run 9: its log is invalid" in drawn
    assert "missed the target" not in drawn


def test_hashes_that_runs_share_stand_once(submissions: Submissions) -> None:
    submissions.add([10, 11])
    (entry,) = read_entries(submissions.root)

    names = [name for name, _ in hashes_of(entry)]

    assert names == ["task", "data", "harness", "trainer", "result_1.txt", "result_2.txt"]


def test_evidence_counts_completed_runs(submissions: Submissions) -> None:
    folder = submissions.add([10, 11, 12], outcomes={1: "interrupted"})
    log = folder / "result_2.txt"
    log.write_text(log.read_text().replace("closed", "open"))
    (entry,) = read_entries(submissions.root)

    evidence = evidence_of(entry)

    assert (evidence.completed, evidence.chained, evidence.rescored) == (2, 1, 2)
    assert evidence.largest_difference is not None
    assert round(evidence.largest_difference, 4) == 0.0016


def _commands(submissions: Submissions, command: object) -> list[str]:
    submissions.add([1, 2, 3], manifest={"command": command})
    return reproduce_commands(read_result(find_results(submissions.root)[0]))


def test_a_command_stands_once(submissions: Submissions) -> None:
    command = "hybridperf run resnet/laptop --plan dp=2,pp=2 --set optimizer.lr=0.2 --runs 5"

    assert _commands(submissions, command) == [command]


def test_of_commands_for_more_and_more_runs_the_last_one_stands(submissions: Submissions) -> None:
    command = "hybridperf run resnet/laptop --plan dp={} --runs {} --division open"
    package = submissions.add([1, 2, 3, 4])
    for number, (dp, runs) in enumerate([(2, 9), (2, 10), (1, 5), (2, 8)], start=1):
        path = package / f"result_{number}.json"
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"command": command.format(dp, runs)})
        )

    commands = reproduce_commands(read_result(find_results(submissions.root)[0]))

    assert commands == [command.format(2, 10), command.format(1, 5)]


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "hybridperf run x; rm -rf /",
        "hybridperf run $(reboot)",
        "hybridperf run `reboot`",
        "hybridperf run x | sh",
        "hybridperf run x && reboot",
        "hybridperf run x > /etc/passwd",
        "hybridperf run x\nreboot",
        "hybridperf run 'x'",
        "hybridperf run ~root",
        "hybridperf run",
        "",
        7,
        None,
        ["hybridperf run x"],
    ],
)
def test_nothing_that_a_shell_would_act_on_is_handed_on(
    submissions: Submissions, command: object
) -> None:
    assert _commands(submissions, command) == []
