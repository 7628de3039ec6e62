"""Temporary folders end with the harness, however it ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.run.files import Scratch, remove_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from hybridperf.run.files import Scratch
scratch = Scratch()
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files whose path is short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_what_a_killed_harness_left_is_removed_by_the_next_and_no_other_s(temporary: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(temporary)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        left = process.stdout.readline().strip()
        other = temporary / "hybridperf_other"
        other.mkdir()
        with contextlib.closing(Scratch()) as own:
            assert {str(path) for path in temporary.iterdir()} == {left, str(own.path), str(other)}
            assert own.path.stat().st_mode & 0o777 == 0o700
        process.kill()
        process.wait()

        with contextlib.closing(Scratch()) as own:
            assert set(temporary.iterdir()) == {own.path, other}

    assert list(temporary.iterdir()) == [other]


def test_a_folder_of_sockets_has_a_short_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))

    with contextlib.closing(Scratch()) as scratch:
        assert scratch.path.parent != long


def test_a_folder_is_removed_whatever_is_in_it_and_links_lead_nowhere(tmp_path: Path) -> None:
    folder, kept = tmp_path / "folder", tmp_path / "kept"
    (folder / "closed/inner/more").mkdir(parents=True)
    kept.mkdir()
    (kept / "file").touch()
    (folder / "closed/inner/link").symlink_to(kept)
    (folder / "closed/inner/more/file").touch()
    (folder / "closed/inner").chmod(0)
    (folder / "closed").chmod(0)

    remove_folder(folder)

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(NotADirectoryError):
        remove_folder(tmp_path / "link")
    assert (kept / "file").exists()
