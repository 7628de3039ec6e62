from __future__ import annotations

import dataclasses
import fcntl
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridperf.errors import UserError
from hybridperf.tasks.data import check_data, data_files, load, prepare
from hybridperf.tasks.data.pairs import NOT_PREDICTED
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.data.texts import VOCABULARY, read_pieces
from tests.tasks.data.texts.test_source import nothing
from tests.texts import SPECIAL, lines, text_data, wikitext, write_lines, write_vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.task import Data


def _tokens(folder: Path, split: str) -> list[int]:
    numbers: list[int] = np.fromfile(folder / f"hybridperf_tokens/{split}.u16", "<u2").tolist()
    return numbers


def _tokens_of_transformers(folder: Path, data: Data, *paths: str) -> list[int]:
    """Return the tokens of files according to transformers."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.BertTokenizerFast(str(folder / VOCABULARY))
    pieces = [text for path in paths for text, _ in read_pieces(data, folder / path)]
    each = tokenizer(pieces, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    return [number for numbers in each for number in numbers]


def test_tokens_of_real_text_are_those_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, entries = wikitext(tmp_path)
    monkeypatch.setenv(DATA_VARIABLE, str(folder))
    data = text_data(
        write_vocabulary(folder, entries),
        entries=len(entries),
        tokens=128,
        masked=19,
        samples=(1500, 1000),
    )
    progress: list[tuple[float, int, str]] = []

    prepare(data, lambda *numbers: progress.append(numbers))

    train, held_out = _tokens(folder, "train"), _tokens(folder, "evaluation")
    assert train == _tokens_of_transformers(folder, data, "wiki.train.tokens")
    assert held_out == _tokens_of_transformers(folder, data, "wiki.valid.tokens")
    assert progress == sorted(progress)
    done, total, what = progress[-1]
    assert 0.99 * total < done <= total
    assert what == f"{len(train) + len(held_out):,} tokens"
    pairs = load(data).train.inputs.draw(np.arange(1500), 1, 1)
    assert not np.isin(pairs.targets, range(len(SPECIAL))).any()
    assert 0.45 < pairs.relations.mean() < 0.55


@pytest.mark.parametrize(
    "line", ["[MASK] the [SEP] ship", "THE Ships' sea,sea", "the\u00a0sea\u200bnorth\tgull \u6d77"]
)
def test_tokens_of_unusual_text_are_those_of_transformers(
    folder: Path, data: Data, line: str
) -> None:
    with (folder / "valid.txt").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")

    prepare(data, nothing)

    assert _tokens(folder, "evaluation") == _tokens_of_transformers(folder, data, "valid.txt")
    assert SPECIAL.index("[MASK]") not in _tokens(folder, "evaluation")


def test_without_a_held_out_split_100_of_10000_pieces_are_held_out(
    folder: Path, data: Data
) -> None:
    (folder / "valid.txt").unlink()
    words = ["gull"] * 100 + ["ship"] * 9900 + ["north"] * 100 + ["sea"] * 4900
    pieces = [piece for word in words for piece in (word, " ")]  # blank ones do not count
    for number in range(3):
        write_lines(folder / f"train-{number}.txt", pieces[10_000 * number : 10_000 * (number + 1)])

    prepare(data, nothing)

    entries = (folder / VOCABULARY).read_text().split()
    held_out = [entries[number] for number in _tokens(folder, "evaluation")]
    assert held_out == ["gull"] * 100 + ["north"] * 100
    train = [entries[number] for number in _tokens(folder, "train")]
    assert train == ["ship"] * 9900 + ["sea"] * 4900


def test_prepared_text_is_not_prepared_again(folder: Path, data: Data) -> None:
    assert prepare(data, nothing)
    before = (folder / "hybridperf_tokens/train.u16").stat().st_mtime_ns

    assert not prepare(data, nothing)

    assert (folder / "hybridperf_tokens/train.u16").stat().st_mtime_ns == before


def test_an_interrupted_preparation_resumes_at_its_file(folder: Path, data: Data) -> None:
    prepare(data, nothing)
    whole, sha256 = _tokens(folder, "train"), check_data(data)
    other = text_data(write_vocabulary(folder))
    (folder / "hybridperf_tokens/record.json").unlink()
    calls = 0

    def stop(done: float, total: int, what: str) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(other, stop)
    record = json.loads((folder / "hybridperf_tokens/record.json").read_text())
    assert (record["files_done"], record["train_sha256"]) == (1, "")
    with pytest.raises(UserError, match="found the tokens of 1 of 4 files; make them with"):
        check_data(other)

    assert prepare(other, nothing)

    assert calls == 2
    assert _tokens(folder, "train") == whole
    assert check_data(other) == sha256


def test_changed_text_is_prepared_again(folder: Path, data: Data) -> None:
    prepare(data, nothing)
    write_lines(folder / "train-1.txt", lines(70))

    assert prepare(data, nothing)

    text = " ".join((folder / f"train-{number}.txt").read_text() for number in range(3))
    assert len(_tokens(folder, "train")) == len(text.split())


def test_a_second_preparation_at_the_same_time_is_refused(folder: Path, data: Data) -> None:
    (folder / "hybridperf_tokens").mkdir()
    with (folder / "hybridperf_tokens/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="found a running command; wait until it ends"):
            prepare(data, nothing)


def test_ends_of_pieces_are_recorded_and_part_of_unfilled_data(folder: Path, data: Data) -> None:
    prepare(data, nothing)

    ends = np.fromfile(folder / "hybridperf_tokens/train_ends.u64", "<u8")

    pieces = [
        len(text.split())
        for number in range(3)
        for text, _ in read_pieces(data, folder / f"train-{number}.txt")
    ]
    assert np.diff(ends, prepend=0).tolist() == pieces
    assert data.text is not None
    text = dataclasses.replace(data.text, masked=4)  # 15 % of a piece is two
    unfilled = dataclasses.replace(data, filled=False, text=text)
    assert check_data(unfilled) != check_data(data)
    assert {path.name for path in data_files(unfilled)} - {
        path.name for path in data_files(data)
    } == {"train_ends.u64", "evaluation_ends.u64"}
    splits = load(unfilled)
    assert splits.train.inputs.lengths(np.arange(40), 1, 1).max() <= 16
    assert (splits.evaluation.labels == NOT_PREDICTED).any()


def test_fewer_pieces_than_samples_are_refused(data: Data) -> None:
    prepare(data, nothing)
    many = dataclasses.replace(data, filled=False, eval_samples=1000)

    with pytest.raises(UserError, match="expected at least 1000 pieces of evaluation text"):
        check_data(many)
