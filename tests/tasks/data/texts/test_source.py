"""What a run reads of prepared text, and what is refused before it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import datasets
import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data import check_data, drop_from_page_cache, load, prepare
from hybridperf.tasks.data.texts import VOCABULARY
from tests.texts import SPECIAL, WORDS, lines, text_data, write_lines, write_rows, write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hybridperf.tasks.task import Data

COMMAND = "make them with 'hybridperf prepare TASK --data-dir FOLDER'"


def nothing(done: float, total: int, what: str) -> None:
    """Ignore progress."""


def _refused(data: Data, *, prepared: bool = False) -> str:
    with pytest.raises(UserError) as refusal:  # noqa: PT012 - either call may raise
        check_data(data)
        if prepared:
            prepare(data, nothing)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    return str(refusal.value)


def test_prepared_text_is_checked_and_read(data: Data) -> None:
    prepare(data, nothing)

    assert len(check_data(data)) == 64
    drop_from_page_cache(data)
    splits = load(data)
    assert (len(splits.train), len(splits.evaluation)) == (40, 10)
    assert splits.train.labels.shape == (40, 0)
    assert splits.evaluation.inputs.shape == (10, 16, 3)
    assert splits.evaluation.labels.shape == (10, 2)


def test_evaluation_inputs_do_not_contain_the_labels(data: Data) -> None:
    prepare(data, nothing)
    many = dataclasses.replace(data, eval_samples=25)

    shown = load(many).evaluation.inputs[:, 1:3, 0]

    labels = load(many).evaluation.labels
    assert (shown == labels).mean() < 0.3
    assert (shown == SPECIAL.index("[MASK]")).mean() > 0.6


def _save(path: Path, text: Sequence[str]) -> None:
    datasets.Dataset.from_dict({"text": text}).save_to_disk(path, num_shards=2)


@pytest.mark.parametrize(("write", "suffix"), [(write_rows, ".parquet"), (_save, "")])
def test_the_checksum_is_the_same_for_every_format_of_the_text(
    folder: Path, data: Data, write: Callable[[Path, Sequence[str]], None], suffix: str
) -> None:
    prepare(data, nothing)
    before, read = check_data(data), load(data)
    for path in sorted(folder.glob("*.txt")):
        if path.name != VOCABULARY:
            write(path.with_suffix(suffix), path.read_text().split("\n"))
            path.unlink()

    assert prepare(data, nothing)

    assert check_data(data) == before
    assert np.array_equal(load(data).evaluation.inputs, read.evaluation.inputs)


def test_text_that_is_unprepared_or_changed_is_refused(folder: Path, data: Data) -> None:
    assert f"found none; {COMMAND}." in _refused(data)
    prepare(data, nothing)
    check_data(data)

    write_lines(folder / "train-1.txt", lines(60))

    assert f"found the tokens of a different text; {COMMAND}." in _refused(data)


def test_truncated_or_missing_tokens_are_refused(folder: Path, data: Data) -> None:
    prepare(data, nothing)
    tokens = folder / "hybridperf_tokens/train.u16"
    tokens.write_bytes(tokens.read_bytes()[:-2])

    assert COMMAND in _refused(data)
    assert prepare(data, nothing)
    tokens.unlink()
    assert COMMAND in _refused(data)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000, b'{"rule": 1e999}', b'"' + b"9" * 5000]
)
def test_an_invalid_record_counts_as_no_record(folder: Path, data: Data, content: bytes) -> None:
    prepare(data, nothing)
    before = check_data(data)
    (folder / "hybridperf_tokens/record.json").write_bytes(content)

    assert COMMAND in _refused(data)
    assert prepare(data, nothing)
    assert check_data(data) == before


def test_too_little_text_is_refused(data: Data) -> None:
    prepare(data, nothing)

    message = _refused(dataclasses.replace(data, train_samples=4000))

    assert f"expected at least {13 * 4001} tokens for 4000 train samples in" in message


def _no_vocabulary(folder: Path) -> None:
    (folder / VOCABULARY).unlink()


def _other_vocabulary(folder: Path) -> None:
    write_vocabulary(folder, WORDS[::-1])


def _no_text(folder: Path) -> None:
    for path in folder.glob("train*"):
        path.unlink()


def _empty_file(folder: Path) -> None:
    (folder / "train-2.txt").write_bytes(b"")


def _not_utf_8(folder: Path) -> None:
    (folder / "train-2.txt").write_bytes(b"the ship\nthe \xe9t\xe9\n")


def _parquet_truncated(folder: Path) -> None:
    _no_text(folder)
    write_rows(folder / "train-0.parquet", lines(50))
    path = folder / "train-0.parquet"
    path.write_bytes(path.read_bytes()[:-9])


def _parquet_damaged(folder: Path) -> None:
    _parquet_truncated(folder)
    path = folder / "train-0.parquet"
    path.write_bytes(b"PAR1" + bytes(900) + b"PAR1")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_no_vocabulary, "a vocabulary in {}/vocab.txt, found none; put the vocabulary of"),
        (_other_vocabulary, "{}/vocab.txt with SHA-256"),
        (_no_text, "or a saved data set, found none; put some text there"),
        (_empty_file, "text in {}/train-2.txt, found an empty file"),
        (_not_utf_8, "UTF-8 text in line 2 of {}/train-2.txt, found the byte 0xe9"),
        (_parquet_truncated, "{}/train-0.parquet to be a whole parquet file"),
        (_parquet_damaged, "rows with the column text in {}/train-0.parquet"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_missing_or_damaged_file_is_refused_by_name(
    folder: Path, data: Data, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder)

    with pytest.raises(UserError) as refusal:
        prepare(data, nothing)

    assert message.format(folder) in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(UserError):
        check_data(data)


def test_a_vocabulary_of_another_length_is_refused(folder: Path) -> None:
    sha256 = write_vocabulary(folder)

    with pytest.raises(UserError, match=f"expected 99 entries in {folder}/vocab.txt"):
        prepare(text_data(sha256, entries=94), nothing)


def test_a_task_without_the_table_data_text_is_refused(data: Data) -> None:
    with pytest.raises(UserError) as refusal:
        check_data(dataclasses.replace(data, text=None))

    assert refusal.value.exit_code is ExitCode.USAGE


def test_the_record_contains_no_absolute_path(folder: Path, data: Data) -> None:
    prepare(data, nothing)

    record = json.loads((folder / "hybridperf_tokens/record.json").read_text())

    assert record["files"][0].startswith("train train-0.txt ")
    assert str(folder) not in json.dumps(record)
