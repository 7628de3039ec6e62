"""``hybridperf report`` and ``hybridperf score`` on several rounds of MLPerf."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.packages import write_result
from tests.score.made_up_round import judge_made_up, log_lines, write_round

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.run.conftest import Finished


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the folders of two rounds with one result each."""
    judge_made_up(monkeypatch)
    folders = [tmp_path / "training_results_v8.0", tmp_path / "training_results_v9.0"]
    for folder, time_s in zip(folders, (800.0, 100.0), strict=True):
        write_round(folder, [log_lines(time_s + run) for run in range(10)])
    return [str(folder) for folder in folders]


def test_the_site_holds_the_scores_that_the_command_prints(
    hybridperf: Callable[..., Finished], rounds: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "site"

    done = hybridperf("report", *rounds, "--out", str(out))

    assert done.code == 0
    assert str(out / "index.html") in done.out.splitlines()
    assert (out / "scores.csv").read_text() == hybridperf("score", *rounds, "--format", "csv").out
    printed = json.loads(hybridperf("score", *rounds, "--format", "json").out)
    assert json.loads((out / "scores.json").read_text()) == printed
    assert [row["since_round"] for row in printed] == [None, "8.0"]
    assert [row["place_best"] for row in printed] == [1, 1]  # each in its round


def test_several_folders_of_ours_are_refused(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    for name in ("a", "b"):
        write_result(tmp_path / name)

    refused = hybridperf("report", str(tmp_path / "a"), str(tmp_path / "b"))

    assert refused.code == 2
    assert "name the folder that holds them" in refused.sentence


def test_the_round_is_a_column_where_there_are_several(
    hybridperf: Callable[..., Finished], rounds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    several = hybridperf("score", *rounds).out
    one = hybridperf("score", rounds[0]).out

    assert "round" in several.splitlines()[0]
    assert "round" not in one.splitlines()[0]
    assert max(map(len, several.splitlines())) <= 80
    assert "valid" in one
