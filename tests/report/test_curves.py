from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.svg import curve_axes, draw_backdrop, draw_panel

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


def test_a_panel_draws_every_run_and_the_target(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14, 15], outcomes={2: "interrupted"})
    submissions.add([20, 21, 22, 23, 24], system="slow")
    (board,) = boards(read_entries(submissions.root))
    axes = curve_axes(board)

    panel = draw_panel(board.rows[0].entry.score, axes, backdrop="all")

    assert panel.count("<path") == 6
    assert panel.count('class="run ended"') == 1
    assert "target 0.98" in panel
    assert "top-1 accuracy" in panel
    assert 'href="#all"' in panel
    assert draw_backdrop(board, axes, name="all").count("<path") == 11
