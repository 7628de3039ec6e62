from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from hybridperf.cli.published_projections import write_projected_curves
from hybridperf.errors import ExitCode, UserError
from hybridperf.projection.scaling_curves import (
    BATCH,
    ScalingCurve,
    ScalingPoint,
    scaling_curves,
)
from hybridperf.report.projected_scaling import draw_curves, projected_scaling_page

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def curves() -> list[ScalingCurve]:
    return scaling_curves()


def test_curves_are_of_all_full_size_models_on_8_to_4096_devices(
    curves: list[ScalingCurve],
) -> None:
    assert {curve.task.partition("/")[0] for curve in curves} == {
        *("resnet50", "resnet152", "vgg", "vit", "bert_large")
    }
    for curve in curves:
        assert [point.devices for point in curve.points] == [2**power for power in range(3, 13)]
        efficiencies = [point.efficiency for point in curve.points]
        assert efficiencies == sorted(efficiencies, reverse=True)
        assert 0.1 < efficiencies[-1] < efficiencies[0] <= 1
        first = curve.points[0]
        alone = first.samples_per_s / (8 * first.efficiency)
        last = curve.points[-1]
        assert last.samples_per_s == pytest.approx(4096 * last.efficiency * alone)


def test_slower_links_scale_worse(curves: list[ScalingCurve]) -> None:
    last = {(curve.task, curve.system): curve.points[-1].efficiency for curve in curves}

    for task in {curve.task for curve in curves}:
        assert last[task, "a100-pcie"] < last[task, "a100-sxm"]


def test_every_panel_and_table_says_that_it_is_projected(curves: list[ScalingCurve]) -> None:
    page = projected_scaling_page(curves)

    assert page.count("<svg") == 5
    for heading in re.findall(r"<h[12]>(.*?)</h[12]>", page)[:-1]:
        assert "projected" in heading.lower()
    for label in re.findall(r'aria-label="(.*?)"', page):
        assert label.startswith("Projected")
    assert page.count("<caption>Projected") == 5
    assert "not measured" in page
    assert f"{BATCH:,} samples" in page
    assert "style=" not in page
    assert "<script" not in page


def test_a_drawing_is_svg_with_a_line_for_each_system(curves: list[ScalingCurve]) -> None:
    vgg = [curve for curve in curves if curve.task == "vgg/cluster"]

    root = ET.fromstring(draw_curves(vgg))

    assert len(root.findall("path")) == len(vgg)
    names = [text.text for text in root.findall("text")]
    assert {curve.system for curve in vgg} <= set(names)
    places = [
        float(text.get("y", "0"))
        for text in root.findall("text")
        if text.text in {curve.system for curve in vgg}
    ]
    assert min(abs(a - b) for a in places for b in places if a != b) >= 11  # none on another


def test_names_in_a_drawing_are_escaped() -> None:
    points = (ScalingPoint(8, 1.0, 1.0), ScalingPoint(16, 1.0, 0.5))

    drawn = draw_curves([ScalingCurve("<b>", "a&b\u202e", 1, points)])

    assert "<b>" not in drawn
    assert "a&amp;b\\u202e" in drawn


def test_the_page_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write_projected_curves(tmp_path / "new") is ExitCode.OK
    (path,) = (tmp_path / "new").iterdir()

    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_text().startswith("<!doctype html>")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as refused:
        write_projected_curves(tmp_path / "file")
    assert refused.value.exit_code is ExitCode.ENVIRONMENT
