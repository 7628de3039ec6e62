"""What the project publishes of its own: valid by its own rules, and rebuilt to the byte."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.chain import SUMS
from hybridperf.log.package import find_results, read_result
from hybridperf.report.board import boards
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import build_report
from hybridperf.rules.check import check_path
from hybridperf.score.score import score_result
from hybridperf.tasks.registry import find_task
from studies.methods.__main__ import METHODS
from tests.published import published_board

if TYPE_CHECKING:
    from hybridperf.score.score import ResultScore

ROOT = Path(__file__).parents[1]
SUBMISSIONS = ROOT / "submissions"


@functools.cache
def published() -> list[ResultScore]:
    return [score_result(read_result(package)) for package in find_results(SUBMISSIONS)]


def test_submissions_keep_every_rule_but_that_some_methods_miss_the_target() -> None:
    verdict = check_path(SUBMISSIONS)

    assert {finding.rule for finding in verdict.findings} <= {"result.missed"}
    systems = [Path(finding.path).parts[-2] for finding in verdict.findings]
    _, *delayed_or_compressed = METHODS
    endings = tuple(f"-{method.key}" for method in delayed_or_compressed)
    assert all(system.endswith(endings) for system in systems)


def test_every_published_result_has_all_its_runs() -> None:
    scores = published()

    assert scores
    for score in scores:
        assert len(score.completed) >= find_task(score.benchmark).runs.count


def test_every_closed_board_has_one_process_and_two_hybrid_plans_of_ten_runs() -> None:
    entries = [each for each in read_entries(SUBMISSIONS) if each.official.division == "closed"]

    plans: dict[str, set[str]] = {}
    for entry in entries:
        assert len(entry.score.completed) == 10
        assert entry.official.trust.level == "re-scored"
        plans.setdefault(entry.benchmark, set()).add(entry.score.plan)
    assert len(plans) == 4
    for each in plans.values():
        assert "dp=1" in each
        assert len(each) >= 3


def test_a_result_that_missed_the_target_has_the_level_of_its_evidence() -> None:
    missed = [each for each in read_entries(SUBMISSIONS) if each.standing == "did not converge"]

    assert missed
    assert {each.official.trust.level for each in missed} == {"chained"}


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """A folder that lies to a folder ``submissions`` as ``reports`` does: links are the same."""
    (tmp_path / SUBMISSIONS.name).symlink_to(SUBMISSIONS)
    return tmp_path / "reports"


def test_reports_are_what_submissions_make(reports: Path) -> None:
    build_report(reports.with_name(SUBMISSIONS.name), reports)

    _assert_as_published(reports)


# Stands for a base install on a machine without OpenSSH.
_BARE = """
import importlib.abc, sys
from pathlib import Path
class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "sklearn", "pandas", "pyarrow", "datasets"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
from hybridperf.report.page import build_report
build_report(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_reports_do_not_depend_on_what_is_installed(reports: Path) -> None:
    root = reports.with_name(SUBMISSIONS.name)
    command = [sys.executable, "-c", _BARE, str(root), str(reports)]
    subprocess.run(command, env=os.environ | {"PATH": str(reports)}, check=True)

    _assert_as_published(reports)


def _assert_as_published(folder: Path) -> None:
    built = {path.name: path.read_bytes() for path in folder.iterdir()}

    assert built == published_board()


def _places(root: Path) -> dict[str, str]:
    return {
        row.entry.result.package.name: str(row.entry.official.place)
        for board in boards(read_entries(root))
        for row in board.rows
        if row.entry.official.place is not None
    }


def test_a_copy_of_all_submissions_takes_no_place_from_them(tmp_path: Path) -> None:
    places = _places(SUBMISSIONS)
    root = shutil.copytree(SUBMISSIONS, tmp_path / "submissions")
    shutil.copytree(root / "hybridperf", root / "zeta")

    assert len(places) >= 33
    assert _places(root) == places


def test_every_submission_is_signed_by_its_listed_key() -> None:
    entries = read_entries(SUBMISSIONS)

    assert all((entry.result.package.folder / f"{SUMS}.sig").is_file() for entry in entries)
    evidence = [entry.official.trust.evidence for entry in entries if entry.valid]
    assert len(evidence) >= 33
    assert all("signed by ED25519 SHA256:" in each for each in evidence)
