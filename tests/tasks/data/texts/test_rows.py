"""Rows of parquet and of saved sets: read in order, or refused in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data.texts.files import read_pieces
from hybridperf.tasks.data.texts.rows import read_rows
from tests.texts import lines, text_data

if TYPE_CHECKING:
    from pathlib import Path

DATA = text_data("0" * 64)
TEXT = [*lines(2500), None, "the s\u00e9a \u6d77"]
SHARD = "data-00000-of-00001.arrow"


def _write(folder: Path, kind: str, columns: dict[str, Any]) -> Path:
    table = datasets.Dataset.from_dict(columns)
    if kind == "arrow":
        table.save_to_disk(folder)
        return folder / SHARD
    table.to_parquet(folder / "train.parquet")
    return folder / "train.parquet"


KINDS = pytest.mark.parametrize("kind", ["arrow", "parquet"])


@KINDS
def test_rows_come_in_order_with_the_share_of_them_that_is_read(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "text [1] *"  # which is no pattern
    folder.mkdir()
    path = _write(folder, kind, {"id": range(len(TEXT)), "text": TEXT})

    texts, shares = zip(*read_rows(DATA, path), strict=True)

    assert list(texts) == [text or "" for text in TEXT]
    assert np.allclose(shares, np.arange(1, 1 + len(TEXT)) / len(TEXT))
    pieces = [text for text, _ in read_pieces(DATA, path)]
    assert pieces == [text for text in TEXT if text and text.strip()]


@KINDS
def test_rows_of_something_else_are_refused(tmp_path: Path, kind: str) -> None:
    others: list[dict[str, Any]] = [{"words": ["the ship"]}, {"text": [["the ship"]]}]
    for number, columns in enumerate(others):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = _write(folder, kind, columns)
        with pytest.raises(UserError) as refusal:
            list(read_rows(DATA, path))
        assert f"rows with the column text in {path}, found" in str(refusal.value)


@KINDS
@pytest.mark.parametrize("seed", range(8))
def test_damage_is_one_sentence_naming_the_file(
    tmp_path: Path, kind: str, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    path = _write(tmp_path, kind, {"text": lines(300)})
    content = np.frombuffer(path.read_bytes(), np.uint8).copy()
    generator = np.random.default_rng(seed)
    content[generator.integers(0, content.size, 400)] = generator.integers(0, 256, 400)
    path.unlink()  # which the set that wrote it maps
    path.write_bytes(content.tobytes())
    capfd.readouterr()

    with pytest.raises(UserError) as refusal:
        list(read_rows(DATA, path))

    assert f"rows with the column text in {path}, found" in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")
