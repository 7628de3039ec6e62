"""docs/planning.md: the commands that fit a system print what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf.projection.systems import read_system
from tests.docs.conftest import ROOT, bash, blocks

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_plans_for_other_systems_are_projected_as_shown(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    first, *_ = blocks("planning", "sh")

    done = bash(tmp_path, first)

    assert done.returncode == 0, done.stderr
    for line in first.splitlines():
        _, _, task, *_ = line.split()
        assert f"{task} on 8 devices" in done.stdout


def test_a_fit_to_our_results_and_its_plans_are_as_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "bin").mkdir()
    (tmp_path / "submissions").symlink_to(ROOT / "submissions")
    (script,) = (each for each in blocks("planning", "sh") if "hybridperf fit" in each)

    done = bash(tmp_path, script)

    assert done.returncode == 0, done.stderr
    shown = [block for block in blocks("planning", "text") if "hybridperf:" not in block]
    lines = [line for block in shown for line in block.splitlines()]
    assert lines
    assert [line for line in lines if line not in done.stdout.splitlines()] == []
    assert read_system(tmp_path / "mine.toml").accuracy is not None
