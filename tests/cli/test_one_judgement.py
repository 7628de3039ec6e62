"""Every command says of a result what ``check`` says, and only valid ones have places."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.cli import main
from hybridperf.log import keys
from hybridperf.log.package import Package, result_names
from hybridperf.report.judgement import judged_scores, read_entries
from hybridperf.rules.check import check_path
from hybridperf.score.validity import Judgement
from tests.packages import change, edit_log, edit_manifest, log_path, place, seal, write_result
from tests.score.made_up_round import judge_made_up, log_lines, write_round

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.run.conftest import Finished


def _ten_times_faster(package: Package) -> None:
    for path in package.folder.glob("result_*.json"):
        path.unlink()
    for number in range(5):

        def edit(bodies: list[str]) -> None:
            start = json.loads(bodies[place(bodies, keys.RUN_START)])["time_ms"]
            for nth, body in enumerate(bodies):
                entry = json.loads(body)
                entry["time_ms"] = start + (entry["time_ms"] - start) // 10
                bodies[nth] = json.dumps(entry)

        bodies = log_path(package, number).read_text().splitlines()
        edit(bodies := [line.partition(" ")[2] for line in bodies])
        log_path(package, number).write_text("".join(f":::MLLOG {body}\n" for body in bodies))


def _without_the_last_run(package: Package) -> None:
    for name in result_names(4):
        (package.folder / name).unlink()


#: what is done to a valid result, and the judgement that follows
CHANGES: dict[str, tuple[Callable[[Package], Any], Judgement]] = {
    "nothing": (lambda _: None, Judgement.VALID),
    "no manifests, and times by ten": (_ten_times_faster, Judgement.BROKEN),
    "no manifest of one run": (
        lambda package: (package.folder / "result_2.json").unlink(),
        Judgement.BROKEN,
    ),
    "another seed": (
        lambda package: edit_manifest(package, 1, seed=3),
        Judgement.BROKEN,
    ),
    "an edited line": (
        lambda package: log_path(package, 1).write_text(
            log_path(package, 1).read_text().replace("1001", "1002", 1)
        ),
        Judgement.BROKEN,
    ),
    "the last run left out": (
        _without_the_last_run,
        Judgement.PROVISIONAL,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_all_commands_say_the_same(
    hybridperf: Callable[..., Finished], tmp_path: Path, name: str
) -> None:
    edit, judgement = CHANGES[name]
    package = write_result(tmp_path / "in")
    other = write_result(tmp_path / "in", system="other", times_s=[20.0, 21.0, 22.0, 23.0, 24.0])
    edit(package)
    if judgement is Judgement.PROVISIONAL:
        seal(tmp_path / "in")
    folder = str(tmp_path / "in")

    checked = json.loads(hybridperf("check", folder, "--json").out)["results"]
    scores = json.loads(hybridperf("score", folder, "--json").out)
    hybridperf("report", folder, "--out", str(tmp_path / "out"))
    board = json.loads((tmp_path / "out" / "leaderboard.json").read_text())["results"]
    compared = hybridperf("compare", str(package.folder), str(other.folder))

    assert [each["judgement"] for each in checked] == [judgement, Judgement.VALID]
    valid = judgement is Judgement.VALID
    assert [entry.official.validity.judgement for entry in read_entries(tmp_path / "in")] == [
        judgement,
        Judgement.VALID,
    ]
    for rows in (scores, board):
        places = {row["system"]: row["place_best"] for row in rows}
        assert places == {"laptop": 1 if valid else None, "other": 2 if valid else 1}
        (row,) = (row for row in rows if row["system"] == "laptop")
        assert bool(row["no_place"]) is not valid
        if judgement is Judgement.BROKEN:
            assert row["official_minutes"] is None
    if judgement is Judgement.BROKEN and compared.code == 0:
        assert "A: no official score and no place" in compared.out


def test_a_result_that_no_ruleset_knows_has_no_place_and_no_score(
    tmp_path: Path, hybridperf: Callable[..., Finished]
) -> None:
    write_round(tmp_path / "somewhere", [log_lines(100.0 + run) for run in range(10)])
    write_round(tmp_path / "training_results_v99.0", [log_lines(100.0 + run) for run in range(10)])

    rows = json.loads(hybridperf("score", str(tmp_path), "--json").out)

    assert [row["place_best"] for row in rows] == [None, None]
    assert [row["official_minutes"] for row in rows] == [None, None]
    whys = [row["no_place"] for row in rows]
    assert "no folder training_results_v<round>" in whys[0]
    assert whys[1] == "no ruleset mlperf-training-99.0.0"


# What cannot be read.


def _as_nobody(*arguments: str) -> tuple[int, str, str]:
    """Execute a command as a user who may read only what all may; return status and output."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(arguments)  # imports what the other user may not be able to read
    out, err = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        status = 99
        try:
            for (read, write), descriptor in ((out, 1), (err, 2)):
                os.close(read)
                os.dup2(write, descriptor)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            sys.stdout = os.fdopen(1, "w", closefd=False)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            status = main(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
    texts = []
    for read, write in (out, err):
        os.close(write)
        with os.fdopen(read) as file:
            texts.append(file.read())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), texts[0], texts[1]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder that everybody may read; pytest's own are private."""
    judge_made_up(monkeypatch)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "in"


LOCKED = {
    "a log": "acme/results/laptop/resnet-laptop/result_2.txt",
    "a manifest": "acme/results/laptop/resnet-laptop/result_2.json",
    "the hashes": "acme/results/laptop/resnet-laptop/SHA256SUMS",
    "the description": "acme/systems/laptop.json",
    "the folder of the result": "acme/results/laptop/resnet-laptop",
    "the folder of the system": "acme/results/laptop",
}


@pytest.mark.parametrize("name", LOCKED)
@pytest.mark.parametrize("command", ["check", "score", "report"])
def test_what_cannot_be_read_is_named_and_counted_and_has_no_score(
    shared: Path, name: str, command: str
) -> None:
    write_result(shared)
    write_result(shared, org="good", times_s=[20.0, 21.0, 22.0, 23.0, 24.0])
    (shared / LOCKED[name]).chmod(0)
    out = shared.with_name("out")
    out.mkdir()
    out.chmod(0o777)
    more = {"check": ("--json",), "score": ("--json",), "report": ("--out", str(out))}

    status, said, errors = _as_nobody(command, str(shared), *more[command])

    (shared / LOCKED[name]).chmod(0o755)
    assert status == 4, errors
    assert LOCKED[name] in errors
    assert "1 file or folder cannot be read" in errors
    if command == "check":
        rows = {row["organisation"]: row["judgement"] for row in json.loads(said)["results"]}
        assert rows.get("acme", "not judged") == "not judged"
        assert rows["good"] == "valid"
        return
    if command == "report":
        said = json.dumps(json.loads((out / "leaderboard.json").read_text())["results"])
    rows = {row["submitter"]: row for row in json.loads(said)}
    assert rows["good"]["place_best"] == rows["good"]["place_worst"] == 1
    if "acme" in rows:
        assert rows["acme"]["place_best"] is rows["acme"]["official_minutes"] is None


@pytest.mark.parametrize("locked", ["result_3.txt", "../../../systems/eight.json"])
def test_an_unreadable_log_of_a_round_is_not_its_slowest_run(shared: Path, locked: str) -> None:
    root = shared / "training_results_v2.1"
    folder = write_round(root, [log_lines(100.0 + run) for run in range(10)])
    (folder / locked).resolve().chmod(0)

    for command in ("check", "score"):
        status, said, errors = _as_nobody(command, str(root), "--json")
        assert status == 4, errors
        assert "cannot be read" in errors
        if command == "score":
            (row,) = json.loads(said)
            assert row["official_minutes"] is row["place_best"] is None
            assert "package.unreadable" in row["no_place"]


def test_a_single_result_in_a_folder_that_cannot_be_read_whole_is_refused(shared: Path) -> None:
    package = write_result(shared)
    (package.folder.parent / "private").mkdir(mode=0)

    status, _, errors = _as_nobody("compare", str(shared), str(shared))

    assert status == 4
    assert "private: expected a file or folder that can be read, found permission denied" in errors


# Copies.


def _places(root: Path) -> dict[str, tuple[str, bool]]:
    return {
        f"{entry.score.org}/{entry.score.system}": (entry.standing, entry.errors != [])
        for entry in read_entries(root)
    }


def test_a_copied_submission_leaves_the_original_its_place(tmp_path: Path) -> None:
    write_result(tmp_path)
    shutil.copytree(tmp_path / "acme", tmp_path / "zeta")

    assert _places(tmp_path) == {"acme/laptop": ("ranked", False), "zeta/laptop": ("broken", True)}
    scores = judged_scores([entry.result.package for entry in read_entries(tmp_path)])
    assert [each.validity.judgement for each in scores] == [Judgement.VALID, Judgement.BROKEN]
    verdict = check_path(tmp_path)
    assert [result.judgement for result in verdict.results] == [Judgement.VALID, Judgement.BROKEN]


def _claims(package: Package, org: str, system: str) -> None:
    """Write a result's logs and descriptions as if they had been made there."""
    for number in range(5):

        def edit(bodies: list[str]) -> None:
            change(bodies, keys.SUBMISSION_ORG, value=org)
            change(bodies, keys.SUBMISSION_PLATFORM, value=system)

        edit_log(package, number, edit)
        edit_manifest(package, number, org=org, platform=system)
    seal(package.root)


def test_two_claims_of_equal_right_are_disputed_and_shown(
    tmp_path: Path, hybridperf: Callable[..., Finished]
) -> None:
    package = write_result(tmp_path / "in")
    shutil.copytree(package.folder.parent, package.folder.parent.with_name("other"))
    systems = package.system_file.parent
    text = json.loads(package.system_file.read_text()) | {"system_name": "other"}
    (systems / "other.json").write_text(json.dumps(text))
    _claims(Package(package.root, "acme", "other", package.benchmark), "acme", "other")

    hybridperf("report", str(tmp_path / "in"), "--out", str(tmp_path / "out"))

    board = json.loads((tmp_path / "out" / "leaderboard.json").read_text())["results"]
    assert {row["standing"] for row in board if row["system"] == "laptop"} == {"disputed"}
    page = (tmp_path / "out" / "index.html").read_text()
    assert "disputed" in page
    assert "no place: result.disputed" in page
