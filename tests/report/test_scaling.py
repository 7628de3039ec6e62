"""What results claim of scaling, in the report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import build_report
from hybridperf.report.scaling_claims import (
    claimed_share,
    draw_scaling,
    figure_by,
    scaling_groups,
)
from hybridperf.rules.check import check_result
from hybridperf.score.scaling import CLAIM, Figure
from tests.packages import write_result
from tests.report.conftest import judge_by
from tests.scaling_results import claim, on_cores, write_on, write_pair

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.report.scaling_claims import ScalingGroup


@pytest.fixture(autouse=True)
def judged(all_valid: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these results be judged: whether a claim holds is what matters here."""
    judge_by(monkeypatch, check_result)


def _groups(root: Path) -> list[ScalingGroup]:
    (board,) = boards(read_entries(root))
    return scaling_groups(board)


def test_a_board_groups_what_is_claimed_by_its_base(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path)
    four = write_on(tmp_path, 4, times_s=[5.0] * 5)
    claim(one, four)
    claim(one, two)

    (group,) = _groups(tmp_path)

    assert group.start == "1 device of acme on-1"
    assert group.kind == "strong"
    assert [made.devices for _, made in group.claims] == [(1, 2), (1, 4)]
    figure = figure_by(group.claims[0][1], "time_to_train")
    assert figure is not None
    assert figure.value == pytest.approx(0.75)


def test_the_plot_has_a_mark_and_an_interval_for_each_metric(tmp_path: Path) -> None:
    claim(*write_pair(tmp_path))
    (group,) = _groups(tmp_path)

    drawn = str(draw_scaling(group))

    assert drawn.count("<circle") == 3
    assert [drawn.count(f"dot {kind}") for kind in ("counts", "dropped", "missed")] == [1, 1, 1]
    # One line of the axis at 100 %, and an interval for each metric.
    assert drawn.count('<line class="axis"') == 4
    assert "on-2: time to train 75.0" in drawn
    assert ">1</text>" in drawn
    assert ">2</text>" in drawn


def test_a_page_without_claims_is_as_it_was_and_one_with_them_shows_them(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path / "in")
    build_report(tmp_path / "in", tmp_path / "plain")
    claim(one, two)
    build_report(tmp_path / "in", tmp_path / "claimed")

    for name in ("index.html", "leaderboard.md"):
        plain = (tmp_path / "plain" / name).read_text().splitlines()
        claimed = (tmp_path / "claimed" / name).read_text().splitlines()
        assert not any("caling efficiency" in text for text in plain)
        assert sum("caling efficiency from" in text or "<h3>Scaling eff" in text
                   for text in claimed) >= 1  # fmt: skip
        rest = iter(claimed)
        assert all(text in rest for text in plain)  # the same lines, and more between them
    for name in ("leaderboard.csv", "leaderboard.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (
            tmp_path / "claimed" / name
        ).read_bytes()


def test_claims_that_do_not_hold_and_bases_that_are_invalid_are_not_shown(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path)
    facts = claim(one, two)
    facts["efficiency"]["time_to_train"]["value"] = 0.99
    (two.folder / CLAIM).write_text(json.dumps(facts))
    assert _groups(tmp_path) == []

    claim(one, two)
    assert len(_groups(tmp_path)) == 1
    one.system_file.write_text("{}")
    assert _groups(tmp_path) == []


def test_a_result_that_shares_cores_claims_nothing(tmp_path: Path) -> None:
    one = write_on(tmp_path, 1)
    crowded = on_cores(write_result(tmp_path, plan="dp=4", system="crowded"), 2)
    facts = claim(one, crowded)

    assert facts["efficiency"] == {}
    assert _groups(tmp_path) == []  # and a claim of nothing is an error


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (None, "–"),  # noqa: RUF001 - what is unknown is an en dash
        (Figure("time_to_train", 0.5, None, None), "50.0 %"),
        (Figure("time_to_train", 0.5, 0.25, 0.75), "50.0 % (25.0 % to 75.0 %)"),
        (Figure("time_to_train", 0.5, 0.25, None), "50.0 % (25.0 % or more)"),
    ],
)
def test_a_figure_stands_with_its_interval(figure: Figure | None, text: str) -> None:
    assert claimed_share(figure).replace("\N{NO-BREAK SPACE}", " ") == text
