"""Files of text are found and read in order; damaged ones are refused in one sentence."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import datasets
import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data.texts import find_texts, read_pieces
from tests.texts import lines, text_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.tasks.task import Data

DATA = text_data("0" * 64)
SHARDS = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]


def _table(first: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": lines(40, first)})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder of two sets that were saved together, each in two shards."""
    folder = tmp_path / "saved"
    together = datasets.DatasetDict({"train": _table(0), "validation": _table(40)})
    together.save_to_disk(folder, num_shards={"train": 2, "validation": 2})
    return folder


def _found(folder: Path) -> list[list[str]]:
    files = find_texts(DATA, folder)
    return [
        [path.relative_to(folder).as_posix() for path in paths]
        for paths in (files.train, files.evaluation)
    ]


def test_sets_saved_together_are_found_in_row_order(saved: Path) -> None:
    expected = [[f"{split}/{shard}" for shard in SHARDS] for split in ("train", "validation")]

    assert _found(saved) == expected
    assert _found(saved.parent) == [[f"saved/{path}" for path in paths] for paths in expected]


def test_sets_saved_separately_are_found(tmp_path: Path) -> None:
    for number, name in enumerate(("train-a", "train-b", "test")):
        _table(number).save_to_disk(tmp_path / name)

    (one, other), (held_out,) = _found(tmp_path)

    assert [path.split("/")[0] for path in (one, other, held_out)] == ["train-a", "train-b", "test"]


def test_a_set_saved_as_the_folder_itself_is_the_training_split(tmp_path: Path) -> None:
    _table(0).save_to_disk(tmp_path, num_shards=2)

    assert _found(tmp_path) == [SHARDS, []]


def _no_shard(saved: Path) -> None:
    (saved / "train" / SHARDS[1]).unlink()


def _shard_truncated(saved: Path) -> None:
    path = saved / "train" / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-8])


def _shard_empty(saved: Path) -> None:
    (saved / "train" / SHARDS[1]).write_bytes(b"")


def _shard_of_another_folder(saved: Path) -> None:
    state = json.loads((saved / "train/state.json").read_text())
    state["_data_files"][0]["filename"] = f"../validation/{SHARDS[0]}"
    (saved / "train/state.json").write_text(json.dumps(state))


def _no_set(saved: Path) -> None:
    shutil.rmtree(saved / "validation")


def _set_without_state(saved: Path) -> None:
    (saved / "validation/state.json").unlink()


def _state_with_another_schema(saved: Path) -> None:
    (saved / "train/state.json").write_text('{"_data_files": ["\u202e"]}')


def _state_nested_too_deeply(saved: Path) -> None:
    (saved / "train/state.json").write_text("[" * 100_000)


def _names_truncated(saved: Path) -> None:
    (saved / "dataset_dict.json").write_text('{"splits": ["train"')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_shard, f"{SHARDS[1]} in the saved data set {{}}/train, found none; save it again"),
        (
            _shard_truncated,
            f"{{}}/train/{SHARDS[1]} to be a whole arrow file, found a truncated file",
        ),
        (_shard_empty, f"{SHARDS[1]} to be a whole arrow file, found a truncated file"),
        (_shard_of_another_folder, f"../validation/{SHARDS[0]} in the saved data set {{}}/train"),
        (_no_set, "validation in the saved data set {}, found none"),
        (_set_without_state, "validation in the saved data set {}, found none"),
        (_state_with_another_schema, "{}/train/state.json in the format of save_to_disk"),
        (_state_nested_too_deeply, "{}/train/state.json in the format of save_to_disk"),
        (_names_truncated, "{}/dataset_dict.json in the format of save_to_disk"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_an_incomplete_saved_set_is_refused_by_name(
    saved: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(saved)

    with pytest.raises(UserError) as refusal:
        find_texts(DATA, saved)

    assert message.format(saved) in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1


def test_files_are_found_by_name_and_suffix(folder: Path, data: Data) -> None:
    for name in ("training.md", "trained", "contrained.txt", "wiki.train.raw", "test.txt"):
        (folder / name).write_text("the ship\n")
    (folder / "more").mkdir()
    (folder / "more/train.tokens").write_text("the ship\n")

    found = find_texts(data, folder)

    assert [path.name for path in found.evaluation] == ["valid.txt"]
    names = [path.relative_to(folder).as_posix() for path in found.train]
    assert names == sorted(
        ["more/train.tokens", "train-0.txt", "train-1.txt", "train-2.txt", "wiki.train.raw"]
    )


ROWS = [*lines(2500), None, "the s\u00e9a \u6d77"]
SINGLE_SHARD = "data-00000-of-00001.arrow"


def _write_table(folder: Path, kind: str, columns: dict[str, Any]) -> Path:
    table = datasets.Dataset.from_dict(columns)
    if kind == "arrow":
        table.save_to_disk(folder)
        return folder / SINGLE_SHARD
    table.to_parquet(folder / "train.parquet")
    return folder / "train.parquet"


FORMATS = pytest.mark.parametrize("kind", ["arrow", "parquet"])


@FORMATS
def test_rows_are_read_in_order_with_the_fraction_read(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "text [1] *"  # a glob pattern, which must be escaped
    folder.mkdir()
    path = _write_table(folder, kind, {"id": range(len(ROWS)), "text": ROWS})

    texts, shares = zip(*read_pieces(DATA, path), strict=True)

    rows = [row for row, text in enumerate(ROWS) if text and text.strip()]
    assert list(texts) == [ROWS[row] for row in rows]
    assert np.allclose(shares, (np.array(rows) + 1) / len(ROWS))


@FORMATS
def test_tables_without_a_text_column_are_refused(tmp_path: Path, kind: str) -> None:
    others: list[dict[str, Any]] = [{"words": ["the ship"]}, {"text": [["the ship"]]}]
    for number, columns in enumerate(others):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = _write_table(folder, kind, columns)
        with pytest.raises(UserError) as refusal:
            list(read_pieces(DATA, path))
        assert f"rows with the column text in {path}, found" in str(refusal.value)


@FORMATS
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_table_is_refused_by_name(
    tmp_path: Path, kind: str, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    path = _write_table(tmp_path, kind, {"text": lines(300)})
    content = np.frombuffer(path.read_bytes(), np.uint8).copy()
    generator = np.random.default_rng(seed)
    content[generator.integers(0, content.size, 400)] = generator.integers(0, 256, 400)
    path.unlink()  # the data set that wrote it has mapped it into memory
    path.write_bytes(content.tobytes())
    capfd.readouterr()

    with pytest.raises(UserError) as refusal:
        list(read_pieces(DATA, path))

    assert f"rows with the column text in {path}, found" in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    assert capfd.readouterr() == ("", "")
