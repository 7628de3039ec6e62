"""``hybridperf rcp make``: from runs in a folder to reference points that ``score`` takes."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING

from hybridperf.cli.commands import rcp
from tests.packages import edit_log, write_result

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from hybridperf.log.package import Package
    from hybridperf.run.request import RunRequest
    from tests.run.conftest import Finished

TIMES_S = [float(10 + number) for number in range(10)]


def test_a_point_made_of_runs_judges_results(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    reference = write_result(tmp_path / "reference", times_s=TIMES_S)
    make = ("rcp", "make", "resnet/laptop", "--from", str(reference.folder))

    made = hybridperf(*make)
    lines = hybridperf(*make, "--format", "toml")

    assert (made.code, lines.code) == (0, 0)
    assert len(tomllib.loads(lines.out)["reference"]["seeds"]) == 10
    (tmp_path / "rcps").mkdir()
    (tmp_path / "rcps" / "rcps_resnet-laptop.json").write_text(made.out)
    result = str(write_result(tmp_path / "result").folder)
    score = hybridperf("score", result, "--rcp-set", str(tmp_path / "rcps"), "--json")
    (row,) = json.loads(score.out)
    assert (row["rcp_passed"], row["rcp_factor"]) == (True, 1.0)
    assert row["rcp_reference_mean"] == 8 * 1195 // 32 * 32  # of these runs, not the task's own


def test_without_a_folder_twice_the_runs_are_made(
    hybridperf: Callable[..., Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RunRequest] = []

    def make_runs(request: RunRequest, *, quiet: bool) -> Package:
        assert not quiet
        print("10 runs to make")  # noqa: T201 - as the real one does
        asked.append(request)
        return write_result(tmp_path, times_s=TIMES_S)

    monkeypatch.setattr(rcp, "make_runs", make_runs)

    done = hybridperf("rcp", "make", "resnet/laptop", "--plan", "dp=2")

    assert done.code == 0
    assert done.err == "10 runs to make\n"
    assert len(json.loads(done.out)["resnet-laptop_ref_32"]["Epochs to converge"]) == 10
    assert [(request.runs, str(request.plan), str(request.out)) for request in asked] == [
        (10, "dp=2", "reference_runs")
    ]


def test_what_makes_no_point_is_refused(
    hybridperf: Callable[..., Finished], tmp_path: Path
) -> None:
    few = write_result(tmp_path / "few")
    edited = write_result(tmp_path / "edited", times_s=TIMES_S)
    edit_log(edited, 4, lambda bodies: bodies.pop(3))
    write_result(tmp_path / "edited", system="other")
    for arguments, code, sentence in [
        (("resnet/laptop", "--from", str(few.folder)), 3, "expected 10 completed runs or more"),
        (("resnet/laptop", "--from", str(edited.folder)), 3, "result_4.txt"),
        (("resnet/laptop", "--from", str(tmp_path / "edited")), 2, "found 2 results"),
        (("resnet/laptop", "--from", str(tmp_path / "nowhere")), 4, "found no such folder"),
        (("resnet/laptpo", "--from", str(few.folder)), 2, "did you mean resnet/laptop"),
        (("resnet/laptop", "--plan", "pp=7"), 2, "at most 6 stages"),
        ((), 2, "required: task"),
    ]:
        done = hybridperf("rcp", "make", *arguments)
        assert done.code == code, arguments
        assert sentence in done.sentence
    assert hybridperf("rcp", "break").code == 2
