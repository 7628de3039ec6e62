"""What Hugging Face's ``save_to_disk`` wrote: found whole, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import datasets
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data.texts.files import find_texts
from tests.texts import lines, text_data

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DATA = text_data("0" * 64)
SHARDS = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]


def _table(first: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": lines(40, first)})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a folder of two sets that were saved together, each in two shards."""
    place = tmp_path / "saved"
    together = datasets.DatasetDict({"train": _table(0), "validation": _table(40)})
    together.save_to_disk(place, num_shards={"train": 2, "validation": 2})
    return place


def _found(folder: Path) -> list[list[str]]:
    files = find_texts(DATA, folder)
    return [
        [path.relative_to(folder).as_posix() for path in paths]
        for paths in (files.train, files.evaluation)
    ]


def test_sets_saved_together_are_found_in_the_order_of_their_rows(saved: Path) -> None:
    expected = [[f"{split}/{shard}" for shard in SHARDS] for split in ("train", "validation")]

    assert _found(saved) == expected
    assert _found(saved.parent) == [[f"saved/{path}" for path in paths] for paths in expected]


def test_sets_saved_one_by_one_are_found_too(tmp_path: Path) -> None:
    for number, name in enumerate(("train-a", "train-b", "test")):
        _table(number).save_to_disk(tmp_path / name)

    (one, other), (held_out,) = _found(tmp_path)

    assert [path.split("/")[0] for path in (one, other, held_out)] == ["train-a", "train-b", "test"]


def test_a_set_that_is_the_folder_itself_is_to_be_trained_on(tmp_path: Path) -> None:
    _table(0).save_to_disk(tmp_path, num_shards=2)

    assert _found(tmp_path) == [SHARDS, []]


def _no_shard(saved: Path) -> None:
    (saved / "train" / SHARDS[1]).unlink()


def _shard_cut_off(saved: Path) -> None:
    path = saved / "train" / SHARDS[1]
    path.write_bytes(path.read_bytes()[:-8])


def _shard_empty(saved: Path) -> None:
    (saved / "train" / SHARDS[1]).write_bytes(b"")


def _shard_elsewhere(saved: Path) -> None:
    state = json.loads((saved / "train/state.json").read_text())
    state["_data_files"][0]["filename"] = f"../validation/{SHARDS[0]}"
    (saved / "train/state.json").write_text(json.dumps(state))


def _no_set(saved: Path) -> None:
    shutil.rmtree(saved / "validation")


def _set_half_there(saved: Path) -> None:
    (saved / "validation/state.json").unlink()


def _state_of_something_else(saved: Path) -> None:
    (saved / "train/state.json").write_text('{"_data_files": ["\u202e"]}')


def _state_too_deep(saved: Path) -> None:
    (saved / "train/state.json").write_text("[" * 100_000)


def _names_cut_off(saved: Path) -> None:
    (saved / "dataset_dict.json").write_text('{"splits": ["train"')


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_no_shard, f"the {SHARDS[1]} that was saved in {{}}/train, found none; save it again"),
        (_shard_cut_off, f"{{}}/train/{SHARDS[1]} to end as arrow does, found a file cut off"),
        (_shard_empty, f"{{}}/train/{SHARDS[1]} to end as arrow does, found a file cut off"),
        (_shard_elsewhere, f"the ../validation/{SHARDS[0]} that was saved in {{}}/train"),
        (_no_set, "the validation that was saved in {}, found none"),
        (_set_half_there, "the validation that was saved in {}, found none"),
        (_state_of_something_else, "{}/train/state.json as save_to_disk writes it"),
        (_state_too_deep, "{}/train/state.json as save_to_disk writes it"),
        (_names_cut_off, "{}/dataset_dict.json as save_to_disk writes it"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_what_is_not_whole_is_one_sentence_naming_it(
    saved: Path, harm: Callable[[Path], None], says: str
) -> None:
    harm(saved)

    with pytest.raises(UserError) as refusal:
        find_texts(DATA, saved)

    assert says.format(saved) in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
