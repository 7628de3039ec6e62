"""Joules of results, and blanks where any is missing."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.report.board import boards
from hybridperf.report.frames import read_runs
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import leaderboard_page
from hybridperf.report.tables import leaderboard_csv
from hybridperf.report.terminal import scores_text
from hybridperf.score.metrics import row_of
from tests.packages import edit_log, seal, write_result

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from hybridperf.report.judgement import JudgedResult

Lines = list[dict[str, Any]]
RUNS = 5


def lines_of(epochs: int, number: int, nodes: int = 1) -> Lines:
    """Return what each node of run ``number`` logs: 10 J of a package and 2.5 J of a GPU an epoch.

    Run n has n joules more in its first epoch.
    """
    return [
        {
            "value": {
                "joules": {
                    "powercap": {"package-0": 10.0 + (number if epoch == 1 else 0)},
                    "nvml": {"gpu-0": 2.5},
                },
                "missing": {},
            },
            "metadata": {"node": node, "nodes": nodes, "epoch_num": epoch},
        }
        for epoch in range(1, epochs + 1)
        for node in range(nodes)
    ]


def entry_with(
    root: Path,
    change: Callable[[int, Lines], object] = lambda *_: None,
    *,
    nodes: int = 1,
    missed: Collection[int] = (),
) -> JudgedResult:
    """Return a result whose runs logged their energy, after ``change`` of the lines of each."""
    package = write_result(root, missed=missed)
    for number in range(RUNS):

        def insert(bodies: list[str], number: int = number) -> None:
            logged = [json.loads(body) for body in bodies]
            epochs = sum(entry["key"] == keys.EVAL_ACCURACY for entry in logged)
            lines = lines_of(epochs, number, nodes)
            change(number, lines)
            last = next(entry for entry in logged if entry["key"] == keys.RUN_STOP)
            where = {name: last["metadata"][name] for name in ("file", "lineno")}
            for line in lines:
                entry = last | {"key": keys.ENERGY, "event_type": "POINT_IN_TIME"} | line
                entry["metadata"] = where | entry["metadata"]
                bodies.append(json.dumps(entry))

        edit_log(package, number, insert)
    seal(root)
    (entry,) = read_entries(root)
    return entry


@pytest.mark.parametrize("nodes", [1, 3])
def test_joules_are_the_sums_of_devices_blocks_and_nodes(tmp_path: Path, nodes: int) -> None:
    entry = entry_with(tmp_path, nodes=nodes)

    assert entry.official.validity.judgement == "valid"
    epochs = [len(run.curve) for run in entry.score.runs]
    of_runs = [nodes * (12.5 * epochs[number] + number) for number in range(RUNS)]
    assert [run.joules for run in entry.score.runs] == of_runs
    assert entry.score.joules == pytest.approx(math.fsum(of_runs) / RUNS)
    samples = [run.samples_to_target for run in entry.score.runs]
    assert entry.score.samples_per_joule == pytest.approx(
        math.fsum(count / joules for count, joules in zip(samples, of_runs, strict=True)) / RUNS
    )
    row = row_of(entry.official)
    assert row["joules"] == entry.score.joules
    (line,) = csv.DictReader(io.StringIO(leaderboard_csv(boards([entry]))))
    assert float(line["joules"]) == entry.score.joules
    assert ">joules</th>" in leaderboard_page(boards([entry]))
    assert "samples/J" in scores_text([entry.official], 300).splitlines()[0]
    assert list(read_runs(tmp_path)["joules"]) == of_runs


def _of_run(number: int, change: Callable[[Lines], object]) -> Callable[[int, Lines], object]:
    return lambda run, lines: change(lines) if run == number else None


def _stand_still(lines: Lines) -> None:
    for line in lines:
        line["value"]["joules"]["nvml"]["gpu-0"] = 0.0


BLANK: dict[str, Callable[[Lines], object]] = {
    "no line": list.clear,
    "a resumption": lambda lines: lines.append(
        {"key": keys.RESUMED, "value": {"epoch": 1, "gap_s": 1.0}, "metadata": {}}
    ),
    "a block without a line": list.pop,
    "a device that is missing in one block": lambda lines: lines[1]["value"]["missing"].update(
        {"gpu-1": "its counter was reset"}
    ),
    "no device": lambda lines: lines[0]["value"].update(joules={}),
    "a counter that stands still": _stand_still,
    "a line twice": lambda lines: lines.append(lines[0]),
    "another node": lambda lines: lines[0]["metadata"].update(node=1),
    "a silent node": lambda lines: [line["metadata"].update(nodes=2) for line in lines],
    "a million nodes": lambda lines: lines[0]["metadata"].update(nodes=10**6),
    "no nodes": lambda lines: lines[0]["metadata"].update(nodes="all"),
    "a block that is none": lambda lines: lines[0]["metadata"].update(epoch_num=[]),
    "no energy": lambda lines: lines[0].update(value="much"),
    "a negative energy": lambda lines: lines[0]["value"]["joules"]["nvml"].update({"gpu-0": -1}),
}


@pytest.mark.parametrize("change", BLANK.values(), ids=BLANK)
def test_what_is_missing_in_one_run_is_blank(
    tmp_path: Path, change: Callable[[Lines], object]
) -> None:
    entry = entry_with(tmp_path, _of_run(3, change))

    runs = entry.score.runs
    assert [run.joules is None for run in runs] == [number == 3 for number in range(RUNS)]
    assert runs[3].samples_per_joule is None
    assert_blank(entry)


def assert_blank(entry: JudgedResult) -> None:
    row = row_of(entry.official)
    assert (row["joules"], row["samples_per_joule"]) == (None, None)
    (line,) = csv.DictReader(io.StringIO(leaderboard_csv(boards([entry]))))
    assert (line["joules"], line["samples_per_joule"]) == ("", "")
    page = leaderboard_page(boards([entry]))
    assert ">joules<" not in page
    assert ">samples/J<" not in page
    assert "joules" not in scores_text([entry.official], 300)


def test_a_run_that_missed_the_target_has_a_rate_and_no_joules(tmp_path: Path) -> None:
    entry = entry_with(tmp_path, missed={2})

    missed = entry.score.runs[2]
    assert (missed.completion, missed.joules) == ("missed", None)
    assert missed.samples_per_joule is not None
    assert entry.score.joules is None
    assert entry.score.samples_per_joule is not None
