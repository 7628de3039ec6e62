"""Runs on a busy machine say so in tables and pages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import leaderboard_markdown, leaderboard_page
from hybridperf.report.sentences import board_sentence
from hybridperf.report.tables import busy_sentence
from hybridperf.report.terminal import scores_text
from hybridperf.score.metrics import row_of
from tests.packages import edit_log, place, seal, write_result

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.report.judgement import JudgedResult

QUIET = {"others": 0.01}
BUSY = {"others": 0.48}
STOLEN = {"steal": 0.2}


def entry_with(root: Path, noises: dict[int, list[tuple[str, object]]]) -> JudgedResult:
    """Return a result whose runs logged ``noises``: for each number intervals and values."""
    package = write_result(root)
    for number, logged in noises.items():

        def insert(bodies: list[str], logged: list[tuple[str, object]] = logged) -> None:
            at = place(bodies, keys.RUN_STOP)
            for interval, value in logged:
                entry = json.loads(bodies[at])
                entry["metadata"].pop("status", None)
                entry["metadata"]["interval"] = interval
                entry |= {"key": keys.NOISE, "value": value, "event_type": "POINT_IN_TIME"}
                bodies.insert(at + 1, json.dumps(entry))

        edit_log(package, number, insert)
    seal(root)
    (entry,) = read_entries(root)
    assert entry.official.validity.judgement == "valid"
    return entry


def test_runs_on_a_busy_machine_say_so_in_table_and_page(tmp_path: Path) -> None:
    entry = entry_with(
        tmp_path,
        {
            0: [("before", BUSY), ("run", QUIET)],
            1: [("run", BUSY)],
            3: [("run", STOLEN)],
        },
    )

    sentence = busy_sentence(entry.score)
    assert sentence == (
        "busy machine in 3 of 5 runs: "
        "in run 3, the hypervisor gave 20% of the processors to others."
    )
    table = scores_text([entry.official], 200)
    assert "busy machine" in table.splitlines()[0]
    assert "3 of 5 runs" in table
    assert f"dp=2: {sentence}" in table.splitlines()
    page = leaderboard_page(boards([entry]))
    assert f">laptop: {sentence}<" in page
    assert f'title="{sentence}">busy machine</small>' in page
    assert f"- acme, laptop: {sentence}" in leaderboard_markdown(boards([entry]))
    assert "laptop: dp=2 (busy machine in 3 of 5 runs) takes" in board_sentence(*boards([entry]))
    assert row_of(entry.official)["busy_why"] == (
        "run 0: other processes used 48% of the processors; "
        "run 1: other processes used 48% of the processors; "
        "run 3: the hypervisor gave 20% of the processors to others"
    )


def test_a_quiet_machine_and_what_is_no_noise_say_nothing(tmp_path: Path) -> None:
    strange: list[object] = [[], "busy", {"others": 7}, {"others": "much"}, {"gpus": 3}, None]
    entry = entry_with(tmp_path, {0: [("run", QUIET)], 1: [("run", value) for value in strange]})

    assert busy_sentence(entry.score) is None
    assert "busy" not in board_sentence(*boards([entry]))
    assert "busy machine" not in scores_text([entry.official], 200)
    assert "busy machine" not in leaderboard_page(boards([entry]))
