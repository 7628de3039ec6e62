"""Studies start, and their pages are what their data make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STUDIES = ("curves", "methods", "pairs", "regret", "rounds", "slow_links")


def _run(study: str, *options: str) -> None:
    command = [sys.executable, "-m", f"studies.{study}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_starts(study: str) -> None:
    _run(study, "--help")


@pytest.mark.parametrize(
    ("study", "options"),
    [("methods", ("--out", "submissions", "--pages")), ("slow_links", ("--out",))],
)
def test_pages_are_what_data_make(study: str, options: tuple[str, ...], tmp_path: Path) -> None:
    _run(study, "publish", *options, str(tmp_path))

    pages = sorted(tmp_path.iterdir())
    assert len(pages) == 2
    for page in pages:
        assert page.read_bytes() == (ROOT / "studies" / study / page.name).read_bytes(), page.name


def test_every_study_has_a_page() -> None:
    index = (ROOT / "studies" / "README.md").read_text()

    for study in STUDIES:
        assert f"({study}/README.md)" in index
        assert (ROOT / "studies" / study / "README.md").is_file()
