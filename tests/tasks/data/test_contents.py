"""Contents of data are hashed once, and again where a file has changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hybridperf.tasks.data import samples
from hybridperf.tasks.data.samples import RECORD, contents_sha256

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(samples, "_HASHED", {})
    monkeypatch.setattr(samples, "_LONG_BYTES", 8)
    paths = [tmp_path / "train" / "a", tmp_path / "val" / "b"]
    for path in paths:
        path.parent.mkdir()
        path.write_text("12345678")
    return paths


def test_the_same_size_with_other_contents_is_other_data(files: list[Path]) -> None:
    before = contents_sha256(files)

    files[1].write_text("12345679")

    assert contents_sha256(files) != before


def test_contents_count_and_neither_times_nor_places(files: list[Path], tmp_path: Path) -> None:
    before = contents_sha256(files)
    (tmp_path / "new").mkdir()
    moved = [path.parent.rename(tmp_path / "new" / path.parent.name) / path.name for path in files]

    assert contents_sha256(moved) == before


def test_a_large_data_set_is_read_once(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents_sha256(files)
    monkeypatch.setattr(samples, "_HASHED", {})  # as in another process
    monkeypatch.setattr(samples, "_hash_files", lambda *_: pytest.fail("read again"))

    assert contents_sha256(files) == before
    assert json.loads((tmp_path / RECORD).read_text())["sha256"] == before


def test_a_record_that_is_none_is_written_anew(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text('{"identity": ')

    before = contents_sha256(files)

    assert json.loads((tmp_path / RECORD).read_text())["sha256"] == before


def test_a_small_data_set_leaves_no_record(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "_LONG_BYTES", 17)

    contents_sha256(files)

    assert not (tmp_path / RECORD).exists()
