"""What is refused before a run, and what a run then reads."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import datasets
import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data import check_data, drop_from_page_cache, load, prepare
from hybridperf.tasks.data.texts.vocabulary import VOCABULARY
from tests.texts import SPECIAL, WORDS, lines, text_data, write_lines, write_rows, write_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hybridperf.tasks.task import Data

COMMAND = "make them with 'hybridperf prepare TASK --data-dir FOLDER'"


def nothing(done: float, total: int, what: str) -> None:
    """Be told of progress."""


def _refused(data: Data, *, prepared: bool = False) -> str:
    with pytest.raises(UserError) as refusal:  # noqa: PT012 - whichever of the two sees it first
        check_data(data)
        if prepared:
            prepare(data, nothing)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    return str(refusal.value)


def test_what_is_prepared_is_found_checked_and_read(data: Data) -> None:
    prepare(data, nothing)

    assert len(check_data(data)) == 64
    drop_from_page_cache(data)
    splits = load(data)
    assert (len(splits.train), len(splits.evaluation)) == (40, 10)
    assert splits.train.labels.shape == (40, 0)
    assert splits.evaluation.inputs.shape == (10, 16, 3)
    assert splits.evaluation.labels.shape == (10, 2)


def test_what_the_model_is_shown_of_held_out_text_holds_no_labels(data: Data) -> None:
    prepare(data, nothing)
    many = dataclasses.replace(data, eval_samples=25)

    shown = load(many).evaluation.inputs[:, 1:3, 0]

    labels = load(many).evaluation.labels
    assert (shown == labels).mean() < 0.3
    assert (shown == SPECIAL.index("[MASK]")).mean() > 0.6


def _save(path: Path, text: Sequence[str]) -> None:
    datasets.Dataset.from_dict({"text": text}).save_to_disk(path, num_shards=2)


@pytest.mark.parametrize(("write", "suffix"), [(write_rows, ".parquet"), (_save, "")])
def test_the_same_text_is_one_edition_however_it_is_kept(
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


def test_text_that_is_not_prepared_or_changed_since_names_the_command(
    folder: Path, data: Data
) -> None:
    assert f"found none; {COMMAND}." in _refused(data)
    prepare(data, nothing)
    check_data(data)

    write_lines(folder / "train-1.txt", lines(60))

    assert f"found those of other text; {COMMAND}." in _refused(data)


def test_tokens_that_were_cut_off_or_lost_name_the_command(folder: Path, data: Data) -> None:
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
def test_a_record_that_is_none_is_as_good_as_no_tokens(
    folder: Path, data: Data, content: bytes
) -> None:
    prepare(data, nothing)
    before = check_data(data)
    (folder / "hybridperf_tokens/record.json").write_bytes(content)

    assert COMMAND in _refused(data)
    assert prepare(data, nothing)
    assert check_data(data) == before


def test_too_little_text_is_refused(data: Data) -> None:
    prepare(data, nothing)

    says = _refused(dataclasses.replace(data, train_samples=4000))

    assert f"expected at least {13 * 4001} tokens for 4000 train samples in" in says


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


def _parquet_cut_off(folder: Path) -> None:
    _no_text(folder)
    write_rows(folder / "train-0.parquet", lines(50))
    path = folder / "train-0.parquet"
    path.write_bytes(path.read_bytes()[:-9])


def _parquet_damaged(folder: Path) -> None:
    _parquet_cut_off(folder)
    path = folder / "train-0.parquet"
    path.write_bytes(b"PAR1" + bytes(900) + b"PAR1")


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_no_vocabulary, "a vocabulary in {}/vocab.txt, found none; put the vocabulary of"),
        (_other_vocabulary, "{}/vocab.txt with SHA-256"),
        (_no_text, "or a set that was saved there, found none; put some text there"),
        (_empty_file, "text in {}/train-2.txt, found an empty file"),
        (_not_utf_8, "UTF-8 text in line 2 of {}/train-2.txt, found the byte 0xe9"),
        (_parquet_cut_off, "{}/train-0.parquet to begin and end as a parquet file does"),
        (_parquet_damaged, "rows with the column text in {}/train-0.parquet"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_what_is_wrong_with_a_file_is_one_sentence_naming_it(
    folder: Path, data: Data, harm: Callable[[Path], None], says: str
) -> None:
    harm(folder)

    with pytest.raises(UserError) as refusal:
        prepare(data, nothing)

    assert says.format(folder) in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(UserError):
        check_data(data)


def test_a_vocabulary_of_another_length_is_refused(folder: Path) -> None:
    sha256 = write_vocabulary(folder)

    with pytest.raises(UserError, match=f"expected 99 entries in {folder}/vocab.txt"):
        prepare(text_data(sha256, entries=94), nothing)


def test_a_task_that_does_not_say_how_samples_are_made_is_refused(data: Data) -> None:
    with pytest.raises(UserError) as refusal:
        check_data(dataclasses.replace(data, text=None))

    assert refusal.value.exit_code is ExitCode.USAGE


def test_the_record_names_no_place(folder: Path, data: Data) -> None:
    prepare(data, nothing)

    record = json.loads((folder / "hybridperf_tokens/record.json").read_text())

    assert record["files"][0].startswith("train train-0.txt ")
    assert str(folder) not in json.dumps(record)
