"""How results scale, in the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import build_report
from hybridperf.report.scaling import draw_scaling, efficiency_words, scaling_groups
from hybridperf.rules.check import check_result
from hybridperf.score.scaling import MetricEfficiency
from hybridperf.score.statistics import Interval
from tests.packages import edit_manifest, write_result
from tests.report.conftest import judge_by
from tests.scaling_results import on_cores, scaling_of, write_on, write_pair

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.report.scaling import ScalingGroup


@pytest.fixture(autouse=True)
def judged(all_valid: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these results be judged: only valid results are compared."""
    judge_by(monkeypatch, check_result)


def _groups(root: Path) -> list[ScalingGroup]:
    (board,) = boards(read_entries(root))
    return scaling_groups(board)


def test_a_board_compares_results_with_the_fewest_devices(tmp_path: Path) -> None:
    one, two = write_pair(tmp_path)
    four = write_on(tmp_path, 4, times_s=[5.0] * 5)

    (group,) = _groups(tmp_path)

    assert group.start == "1 device of acme on-1"
    assert group.kind == "strong"
    assert [scaled.side.devices.used for _, scaled in group.results] == [2, 4]
    for (entry, scaled), package in zip(group.results, (two, four), strict=True):
        (same,) = scaling_of(one, package).results  # as the command computes it
        assert entry.result.package == package
        assert scaled.efficiencies == same.efficiencies
    assert group.results[0][1].rated["time_to_train"].value == pytest.approx(0.75)


def test_the_base_is_the_fastest_result_on_the_fewest_devices(tmp_path: Path) -> None:
    write_pair(tmp_path)
    write_on(tmp_path, 1, system="faster", times_s=[9.0] * 5)

    (group,) = _groups(tmp_path)

    assert group.start == "1 device of acme faster"
    assert [entry.score.system for entry, _ in group.results] == ["on-2"]


@pytest.mark.parametrize("other", ["code", "framework", "processor", "organisation", "crowded"])
def test_results_that_differ_in_more_than_devices_are_not_compared(
    tmp_path: Path, other: str
) -> None:
    one = write_on(tmp_path, 1)
    if other == "code":
        two = write_on(tmp_path, 2)
        for number in range(5):
            code = {"version": "0.1.0", "suite_sha256": "a" * 64, "trainer_sha256": "e" * 64}
            edit_manifest(two, number, code=code)
    elif other == "framework":
        on_cores(write_result(tmp_path, plan="dp=2", system="two"), 2, framework="PyTorch 3.0")
    elif other == "processor":
        on_cores(
            write_result(tmp_path, plan="dp=2", system="two"), 2, host_processor_model_name="Other"
        )
    elif other == "organisation":
        write_on(tmp_path, 2, org="another")
    else:
        on_cores(write_result(tmp_path, plan="dp=4", system="crowded"), 2)

    assert _groups(tmp_path) == []
    assert one.folder.is_dir()


def test_the_plot_has_a_mark_and_an_interval_for_each_metric(tmp_path: Path) -> None:
    write_pair(tmp_path)
    (group,) = _groups(tmp_path)

    drawn = str(draw_scaling(group))

    assert drawn.count("<circle") == 3
    assert [drawn.count(f"dot {kind}") for kind in ("counts", "dropped", "missed")] == [1, 1, 1]
    # One line of the axis at 100 %, and an interval for each metric.
    assert drawn.count('<line class="axis"') == 4
    assert "on-2: time to train 75.0" in drawn
    assert ">1</text>" in drawn
    assert ">2</text>" in drawn


def test_page_and_markdown_show_how_results_scale(tmp_path: Path) -> None:
    write_pair(tmp_path / "in")
    build_report(tmp_path / "in", tmp_path / "out")

    page = (tmp_path / "out/index.html").read_text()
    markdown = (tmp_path / "out/leaderboard.md").read_text()
    assert page.count("<h3>Scaling efficiency</h3>") == 1
    assert "Scaling efficiency from 1 device of acme on-1; 2 devices: time to train 75.0" in page
    assert "Scaling efficiency from 1 device of acme on-1, strong, with 95 % intervals:" in markdown
    assert "| on-2 | 2 | 75.0" in markdown


def test_a_result_of_too_few_runs_is_not_compared(tmp_path: Path) -> None:
    write_pair(tmp_path)
    write_on(tmp_path, 4, times_s=[5.0, 5.0])

    (group,) = _groups(tmp_path)

    assert [entry.score.system for entry, _ in group.results] == ["on-2"]


def test_invalid_results_are_neither_base_nor_compared(tmp_path: Path) -> None:
    one, _ = write_pair(tmp_path)
    assert len(_groups(tmp_path)) == 1

    one.system_file.write_text("{}")

    assert _groups(tmp_path) == []


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (None, "50.0 %"),
        (Interval(0.25, 0.75), "50.0 % (25.0 % to 75.0 %)"),
        (Interval(0.25, float("inf")), "50.0 % (25.0 % or more)"),
    ],
)
def test_an_efficiency_stands_with_its_interval(interval: Interval | None, text: str) -> None:
    one = MetricEfficiency("time_to_train", 0.5, interval, "rated")

    assert efficiency_words(one).replace("\N{NO-BREAK SPACE}", " ") == text
    assert efficiency_words(None) == "\N{EN DASH}"
