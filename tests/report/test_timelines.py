from __future__ import annotations

import copy
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.writer import LogWriter
from hybridperf.report.board import boards
from hybridperf.report.evidence import read_timeline, timelines_of
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import leaderboard_page
from hybridperf.report.svg import draw_timelines

if TYPE_CHECKING:
    from tests.report.conftest import Submissions

STATED: list[dict[str, Any]] = [
    {
        "rank": 0,
        "actions": [["forward", 3, 0, 0, 0.0, 0.002], ["backward", 3, 0, 0, 0.008, 0.01]],
    },
    {
        "rank": 1,
        "actions": [
            ["forward", 3, 1, 0, 0.002, 0.004],
            ["backward of inputs", 3, 1, 0, 0.004, 0.006],
            ["backward of weights", 3, 1, 0, 0.006, 0.007],
            ["update", 3, 1, 0, 0.007, 0.008],
        ],
    },
]


def _bars(svg: str) -> list[ET.Element]:
    return [each for each in ET.fromstring(svg).iter() if each.tag == "rect"]


def test_every_action_is_a_bar_at_its_time() -> None:
    bars = _bars(str(draw_timelines([("measured", read_timeline(STATED))])))

    assert [bar.attrib["class"] for bar in bars] == [
        *("action forward", "action backward"),
        *("action forward", "action backward-of-inputs", "action backward-of-weights"),
        "action update",
    ]
    starts = [float(bar.attrib["x"]) for bar in bars]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert starts[1] - starts[0] == pytest.approx(4 * widths[0], abs=0.2)
    assert starts[2] == pytest.approx(starts[0] + widths[0], abs=0.2)
    assert len({bar.attrib["y"] for bar in bars}) == 2, "one row for each rank"


def test_timelines_below_each_other_have_one_axis() -> None:
    timeline = read_timeline(STATED)
    longer = [[bar._replace(stop_s=bar.stop_s * 2) for bar in rank] for rank in timeline]

    svg = str(draw_timelines([("measured", timeline), ("projected", longer)]))

    bars = _bars(svg)
    assert bars[0].attrib["x"] == bars[6].attrib["x"]
    widths = [float(bars[number].attrib["width"]) for number in (0, 6)]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
    assert "measured: 2 ranks, 10.0 ms, idle for 50% of it" in svg


@pytest.mark.parametrize(
    "change",
    [
        lambda stated: stated[0].update(actions=3),
        lambda stated: stated[0]["actions"].append("forward"),
        lambda stated: stated[0]["actions"][0].append(1),
        lambda stated: stated[0]["actions"][0].__setitem__(0, "<script>"),
        lambda stated: stated[0]["actions"][0].__setitem__(0, []),  # not hashable
        lambda stated: stated[0]["actions"][0].__setitem__(1, "3"),
        lambda stated: stated[0]["actions"][0].__setitem__(4, -1.0),
        lambda stated: stated[0]["actions"][0].__setitem__(5, 1e300),
        lambda stated: stated[0]["actions"][0].__setitem__(4, 0.003),  # after its end
        lambda stated: stated.__setitem__(0, []),
        lambda stated: stated.extend([stated[0]] * 70),
        lambda stated: stated[0].update(actions=stated[0]["actions"] * 2_000),
        lambda stated: stated.clear(),
    ],
)
def test_a_timeline_that_is_none_is_not_drawn(change: Any) -> None:
    stated = copy.deepcopy(STATED)
    change(stated)

    assert read_timeline(stated) == []
    assert read_timeline(None) == []


def test_the_projected_timeline_is_above_the_measured_one(submissions: Submissions) -> None:
    folder = submissions.add([10, 11, 12, 13, 14])
    projected = [STATED[0]]
    with LogWriter(folder / "result_1.txt") as log:
        log.point(keys.TRACKED_STATS, {"timeline": STATED}, epoch_num=1)
    with LogWriter(folder / "result_2.txt") as log:
        log.point(keys.PROJECTION, {"step_s": 0.01, "timeline": projected})
        log.point(keys.TRACKED_STATS, {"timeline": STATED}, epoch_num=1)
    (result,) = (entry.result for entry in read_entries(submissions.root))

    timelines = timelines_of(result)

    assert timelines == [
        ("projected", read_timeline(projected)),
        ("measured, run 2", read_timeline(STATED)),
    ]
    page = leaderboard_page(boards(read_entries(submissions.root)))
    assert page.index(">projected<") < page.index(">measured, run 2<")


def test_what_is_projected_alone_is_not_drawn(submissions: Submissions) -> None:
    folder = submissions.add([10])
    with LogWriter(folder / "result_1.txt") as log:
        log.point(keys.PROJECTION, {"step_s": 0.01, "timeline": STATED})
    (result,) = (entry.result for entry in read_entries(submissions.root))

    assert timelines_of(result) == []
