"""Addresses of a result's files, and the commands that reproduce it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from hybridperf.report.evidence import links_of, may_link, reproduce_steps
from hybridperf.report.judgement import read_entries

if TYPE_CHECKING:
    from pathlib import Path

    from tests.report.conftest import Submissions

COMMIT = "8b1b2196747d3b1461b384366aae2c2442ec1f0f"


@pytest.mark.parametrize(
    ("root", "out", "linked"),
    [
        ("submissions", "reports", True),
        ("runs", "runs/report", True),
        ("runs", "runs/report/today", True),
        ("submissions", ".", True),
        ("submissions", "../elsewhere/reports", False),
        ("submissions", "public/reports", False),
    ],
)
def test_a_report_links_to_files_in_or_beside_its_folder(
    root: str, out: str, linked: bool, tmp_path: Path
) -> None:
    assert may_link(tmp_path / root, tmp_path / out) is linked


def test_links_lead_from_the_report_to_every_file(submissions: Submissions, tmp_path: Path) -> None:
    submissions.add([10, 11, 12], org="a b", system="100% #1?")
    (entry,) = read_entries(submissions.root)
    out = tmp_path / "report"

    links = links_of(entry.result, out)

    addresses = [links.system, *links.logs.values(), *links.manifests.values()]
    assert len(addresses) == 7
    assert all((out / unquote(each)).resolve().is_file() for each in addresses)
    assert links.logs[1].startswith("../submissions/a%20b/results/100%25%20%231%3F/")


def test_an_address_is_never_taken_for_a_scheme(submissions: Submissions) -> None:
    submissions.add([10, 11, 12], org="javascript:x")
    (entry,) = read_entries(submissions.root)

    assert links_of(entry.result, submissions.root).system.startswith("./javascript%3Ax/")


def test_files_that_there_are_not_have_no_address(submissions: Submissions, tmp_path: Path) -> None:
    folder = submissions.add([10, 11, 12])
    (folder / "result_1.json").unlink()
    (folder.parents[2] / "systems" / "laptop.json").unlink()
    (entry,) = read_entries(submissions.root)

    links = links_of(entry.result, tmp_path)

    assert (links.system, links.manifests[1]) == ("", "")
    assert links_of(entry.result, None).logs == {1: "", 2: "", 3: ""}


@pytest.mark.parametrize(
    ("commit", "first"),
    [
        (COMMIT, f"git checkout {COMMIT}"),
        (f"{COMMIT}-dirty", f"git checkout {COMMIT}  # and changes that no commit has"),
        ("main; rm -rf /", "pip install 'hybridperf[train]==0.1'"),
        (None, "pip install 'hybridperf[train]==0.1'"),
    ],
)
def test_a_result_is_reproduced_by_its_commit_or_else_its_version(
    submissions: Submissions, commit: str | None, first: str
) -> None:
    submissions.add([10, 11, 12], manifest={"code": {"version": "0.1", "commit": commit}})
    (entry,) = read_entries(submissions.root)

    steps = reproduce_steps(entry.result)

    assert steps[0] == first
    assert steps[-1] == "hybridperf run resnet/laptop --plan dp=2 --runs 5"
