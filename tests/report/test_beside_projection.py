"""What the page says of a result beside its projection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hybridperf.log import keys
from hybridperf.log.writer import TOKEN
from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import leaderboard_page
from tests.packages import chained, place, read_bodies

if TYPE_CHECKING:
    from pathlib import Path

    from tests.report.conftest import Submissions

RANK = {
    "stage": 0,
    "compute_s": 0.02,
    "waiting_s": 0.0,
    "exposed_communication_s": 0.0,
    "optimizer_s": 0.0,
}
STAGE = RANK | {"replica": 0, "compute_s": 4.0, "input_s": 0.0}


def _state(folder: Path, projection: dict[str, Any]) -> None:
    """Have all logs state a projection, and of each block of 100 steps the seconds of a rank."""
    for path in folder.glob("result_*.txt"):
        bodies = read_bodies(path)
        line = json.loads(bodies[place(bodies, keys.SEED)])
        bodies.insert(1, json.dumps(line | {"key": keys.PROJECTION, "value": projection}))
        for nth in range(8):
            at = place(bodies, keys.TRACKED_STATS, 2 * nth + 1)
            stats = json.loads(bodies[at])
            bodies[at] = json.dumps(stats | {"value": stats["value"] | {"stages": [STAGE]}})
            stop = {"key": keys.BLOCK_STOP, "value": None, "metadata": {"steps": 100}}
            bodies.insert(at + 1, json.dumps(stats | stop))
        assert path.read_text().startswith(TOKEN)
        path.write_text(chained(bodies))


def _page(submissions: Submissions) -> str:
    return leaderboard_page(boards(read_entries(submissions.root)))


def test_the_page_says_what_was_projected_and_what_differs_most(submissions: Submissions) -> None:
    _state(submissions.add([10, 11, 12, 13, 14]), {"step_s": 0.03, "ranks": [RANK]})
    (entry,) = read_entries(submissions.root)
    beside = entry.score.beside_projection
    assert beside is not None

    page = _page(submissions)

    assert f"<p>Projected and measured: {beside.sentence}</p>" in page
    assert "the largest difference is in computation: 40.0 ms, projected 20.0 ms." in page
    assert f'">{beside.share:.0%}</td>' in page
    assert "<b>Oversubscription</b>" not in page


def test_the_page_says_what_may_make_steps_slow(submissions: Submissions) -> None:
    _state(submissions.add([10, 11, 12, 13, 14]), {"step_s": 0.01, "ranks": [RANK]})

    page = _page(submissions)

    assert "<p><b>Oversubscription</b>: every rank computes at least 2.0 times as long" in page


def test_without_a_projection_the_page_says_nothing(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14])

    page = _page(submissions)

    assert "Projected and measured" not in page
    assert "Timeline of a step" not in page
