from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest
from markupsafe import Markup

from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.svg import (
    Scale,
    curve_axes,
    draw_bars,
    draw_curves,
    draw_panel,
    draw_strip,
    element,
    fixed,
    strip_scale,
    tick_text,
    why_scale,
)
from hybridperf.score.official import Why

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


def test_an_element_escapes_what_is_not_markup() -> None:
    drawn = element("text", "<b>&", Markup("<i/>"), class_='"x', stroke_width=1.25, x=-0.01)

    assert drawn == '<text class="&#34;x" stroke-width="1.2" x="0">&lt;b&gt;&amp;<i/></text>'


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1"), (1.25, "1.2"), (-0.04, "0"), (10.06, "10.1")]
)
def test_coordinates_have_at_most_one_decimal(value: float, text: str) -> None:
    assert fixed(value) == text


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0.0],
        [5.0, 5.0],
        [math.inf, math.nan],
        [-1e300, 1e300],
        [1e15, 1e15 + 1],
        [1e-12, 2e-12],
        [7.1, 18.3],
    ],
)
def test_any_values_make_a_scale(values: list[float]) -> None:
    scale = Scale.around(values, start=0, stop=100, most_ticks=10)
    ticks = scale.ticks(5)

    assert scale.low < scale.high
    assert 1 <= len(ticks) <= 7
    assert all(0 <= scale.at(value) <= 100 for value in values if not math.isnan(value))
    assert all(tick_text(tick, ticks) for tick in ticks)


def test_ticks_are_round() -> None:
    scale = Scale.around([7.1, 18.3], start=0, stop=100, most_ticks=12)
    ticks = scale.ticks(7)

    assert [tick_text(tick, ticks) for tick in ticks] == ["8", "10", "12", "14", "16", "18"]


def test_every_completed_run_is_a_dot_and_dropped_ones_are_hollow(submissions: Submissions) -> None:
    outcomes = {2: "interrupted", 5: "target_missed"}
    submissions.add([10, 11, 12, 13, 14, 15], outcomes=outcomes)
    (entry,) = read_entries(submissions.root)

    drawn = draw_strip(entry.score, strip_scale([entry.score]))

    kinds = re.findall(r'class="dot ([a-z ]+)"', drawn)
    assert len(kinds) == len(entry.score.completed) == 5
    assert sorted(kinds) == ["counts", "counts", "counts", "dropped", "dropped missed"]


def test_bars_begin_at_one() -> None:
    splits = [
        Why(samples_ratio=1, seconds_per_sample_ratio=1),
        Why(samples_ratio=0.5, seconds_per_sample_ratio=4),
    ]

    drawn = draw_bars(splits[1], why_scale(splits))

    bars = [
        (float(x), float(width))
        for x, width in re.findall(
            r'<rect class="bar \w+" x="([\d.]+)" y="\d+" width="([\d.]+)"', drawn
        )
    ]
    (left, one_width), (one, two_width) = bars
    assert left + one_width == pytest.approx(one, abs=0.2)
    assert two_width == pytest.approx(2 * one_width, abs=0.2)


def test_a_panel_shows_every_run_and_the_target(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14, 15], outcomes={2: "interrupted"})
    submissions.add([20, 21, 22, 23, 24], system="slow")
    (board,) = boards(read_entries(submissions.root))
    entry = board.rows[0].entry

    axes = curve_axes(board, board.rows, "axes")
    curves = draw_curves(board.rows, axes)
    panel = draw_panel(entry, axes)

    own = curves.split(f'id="curves-{entry.anchor}"')[1].split('id="curves-')[0]
    assert own.count("<path") == 6
    assert own.count('class="run ended"') == 1
    assert curves.count("<path") == 11
    assert "target 0.98" in curves
    assert "top-1 accuracy" in curves
    used = re.findall('href="#([^"]+)"', panel)
    assert used == ["axes", "axes-curves", f"curves-{entry.anchor}"]
    assert all(f'id="{name}"' in curves for name in used)
