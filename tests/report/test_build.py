from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.report.page import build_report

if TYPE_CHECKING:
    from tests.report.conftest import Submissions

NAMES = ["index.html", "leaderboard.md", "leaderboard.csv", "leaderboard.json"]
ELSEWHERE = """
import sys
from pathlib import Path
import hybridperf.rules.check
hybridperf.rules.check.check_result = lambda result, _: list(result.findings)
hybridperf.rules.check.traces_of = lambda *_, **__: []
from hybridperf.report.page import build_report
build_report(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def _fill(submissions: Submissions) -> None:
    submissions.add([10, 11, 12, 13, 14, 15], outcomes={2: "interrupted"})
    submissions.add([11, 12, 13, 14, 15], org="other", system="laptop-pp2", plan="pp=2")
    submissions.add([9, 10], system="short")


def _content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in NAMES]


def test_the_report_is_four_files_and_nothing_else(
    submissions: Submissions, tmp_path: Path
) -> None:
    _fill(submissions)
    out = tmp_path / "deep" / "out"

    written = build_report(submissions.root, out)

    assert written == [out / name for name in NAMES]
    assert sorted(path.name for path in out.iterdir()) == sorted(NAMES)


def test_equal_submissions_make_equal_bytes(submissions: Submissions, tmp_path: Path) -> None:
    _fill(submissions)
    build_report(submissions.root, tmp_path / "one")
    build_report(submissions.root, tmp_path / "one")

    for seed in ("1", "2"):
        moved, out = tmp_path / seed / submissions.root.name, tmp_path / seed / "one"
        shutil.copytree(submissions.root, moved)
        environment = os.environ | {"PYTHONHASHSEED": seed, "LC_ALL": "C", "TZ": "Asia/Kathmandu"}
        subprocess.run(
            [sys.executable, "-c", ELSEWHERE, str(moved), str(out)],
            env=environment,
            cwd=Path(__file__).parents[2],
            check=True,
        )
        assert _content(out) == _content(tmp_path / "one")


def test_no_file_names_a_place_on_this_machine(submissions: Submissions, tmp_path: Path) -> None:
    _fill(submissions)
    (submissions.root / "acme" / "systems" / "laptop.json").write_text("{")

    build_report(submissions.root, tmp_path / "out")

    assert not any(str(tmp_path).encode() in content for content in _content(tmp_path / "out"))


def test_an_empty_folder_makes_a_report(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    build_report(tmp_path / "empty", tmp_path / "out")

    assert all(_content(tmp_path / "out"))
