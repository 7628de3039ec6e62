from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data import (
    check_data,
    drop_from_page_cache,
    load,
    pictures,
    prepare,
    require_readable,
)
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.task import Data

if TYPE_CHECKING:
    from pathlib import Path

Image = pytest.importorskip("PIL.Image", reason="Pillow, which writes the images, is not here")

PICTURES = Data("pictures", "some images", "", "as its folders say", 6, 4, editions={})
CIFAR = Data("cifar10", "CIFAR-10", "", "as published", 6, 4, editions={})


def encoded(colour: int, size_px: int = 32, kind: str = "PNG") -> bytes:
    """Return an image of one colour."""
    file = io.BytesIO()
    Image.new("RGB", (size_px, size_px), (colour, 0, 0)).save(file, kind)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a tree of two classes: three training images of each, and two to evaluate."""
    for part, count in (("train", 3), ("val", 2)):
        for number, name in enumerate(("ape", "bee")):
            place = tmp_path / part / name
            place.mkdir(parents=True)
            for index in range(count):
                (place / f"{index}.png").write_bytes(encoded(100 * number + 10 * index))
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return two training shards of three images, and one of four to evaluate."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    place = tmp_path / "shards[1]"  # which is no pattern
    place.mkdir()
    for name, first, count in (("train-0", 0, 3), ("train-1", 3, 3), ("validation-0", 6, 4)):
        rows = range(first, first + count)
        table = {
            "image": [{"bytes": encoded(10 * row), "path": None} for row in rows],
            "label": [row % 2 for row in rows],
        }
        datasets.Dataset.from_dict(table).to_parquet(place / f"{name}.parquet")
    monkeypatch.setenv(DATA_VARIABLE, str(place))
    return place


def _refused(data: Data) -> str:
    with pytest.raises(UserError) as refusal:  # noqa: PT012 - whichever of the two sees it first
        check_data(data)
        load(data)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    return str(refusal.value)


def test_classes_are_numbered_in_the_order_of_folder_names(folder: Path) -> None:
    splits = load(PICTURES)

    assert splits.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert splits.evaluation.labels.tolist() == [0, 0, 1, 1]
    names = [each.name for each in splits.train.inputs[np.array([3, 0])]]
    assert names == [str(folder / "train/bee/0.png"), str(folder / "train/ape/0.png")]
    (last,) = splits.evaluation.inputs[3:9]
    assert last.content == (folder / "val/bee/1.png").read_bytes()


def test_shards_are_read_in_the_order_of_file_names(shards: Path) -> None:
    splits = load(PICTURES)

    assert splits.train.labels.tolist() == [0, 1, 0, 1, 0, 1]
    contents = [each.content for each in splits.train.inputs[np.array([5, 0])]]
    assert contents == [encoded(50), encoded(0)]
    assert [each.content for each in splits.evaluation.inputs[:1]] == [encoded(60)]


def test_the_checksum_covers_names_and_sizes(folder: Path) -> None:
    before = check_data(PICTURES)

    (folder / "train/ape/0.png").write_bytes(encoded(7, size_px=64))

    assert check_data(PICTURES) != before
    drop_from_page_cache(PICTURES)


def test_a_missing_data_folder_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    message = _refused(PICTURES)
    assert f"found none; name it with --data-dir or in the variable {DATA_VARIABLE}." in message

    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "absent"))
    assert f"found no folder {tmp_path}/absent" in _refused(PICTURES)

    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert f"expected {tmp_path}/train/<class>/ with images" in _refused(PICTURES)


def test_an_empty_image_is_refused_by_name(folder: Path) -> None:
    (folder / "train/bee/1.png").write_bytes(b"")

    message = _refused(PICTURES)

    assert f"expected an image in {folder}/train/bee/1.png, found an empty file" in message


@pytest.mark.parametrize("name", ["._0.png", ".hidden.jpg"])
def test_hidden_files_such_as_those_of_macos_are_ignored(folder: Path, name: str) -> None:
    before = check_data(PICTURES)
    (folder / "train/ape" / name).write_bytes(b"\0\5\x16\7")
    (folder / "train/.checkpoints").mkdir()
    (folder / "train/.checkpoints/0.png").write_bytes(b"no image")

    require_readable(PICTURES)

    assert check_data(PICTURES) == before
    assert load(PICTURES).train.labels.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("kind", ["folder", "broken link", "fifo"])
def test_a_folder_or_broken_link_is_refused_by_name(folder: Path, kind: str) -> None:
    path = folder / "train/bee/1.png"
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(folder / "nowhere.png")

    found = {"folder": "a folder", "broken link": "a broken link", "fifo": "a special file"}[kind]
    assert f"expected an image in {path}, found {found}; " in _refused(PICTURES)


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "webp", "cut png"])
def test_an_image_that_cannot_be_decoded_is_named_before_the_clock_starts(
    folder: Path, damage: str, split: str, remembered: bool
) -> None:
    if remembered:
        assert prepare(PICTURES, lambda *_: None)
    path = folder / split / "bee" / "1.png"
    jpeg = encoded(9, 64, "JPEG")
    path.write_bytes(
        {
            "cut": jpeg[: len(jpeg) // 2],
            "garbage": bytes(range(256)),
            "webp": encoded(9, 64, "WEBP"),
            "cut png": encoded(9, 64)[:-30],
        }[damage]
    )
    check_data(PICTURES)  # quick: it opens no image

    for command in (require_readable, lambda data: prepare(data, lambda *_: None)):
        with pytest.raises(
            UserError, match=f"expected a whole JPEG or PNG in {path}, found "
        ) as no:
            command(PICTURES)
        assert no.value.exit_code is ExitCode.ENVIRONMENT
        assert len(str(no.value).splitlines()) == 1


def test_images_are_decoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, ...]] = []

    assert prepare(PICTURES, lambda *progress: told.append(progress))
    assert told[-1] == (10, 10, "10 images")
    assert not prepare(PICTURES, lambda *_: pytest.fail("decoded again"))

    monkeypatch.setattr(pictures, "_DECODED", set())  # as in another process
    assert not prepare(PICTURES, lambda *_: pytest.fail("decoded again"))
    for path in folder.glob("hybridperf_*"):
        path.write_bytes(b"[" * 10_000)
    assert prepare(PICTURES, lambda *_: None)


def test_in_a_read_only_folder_images_are_decoded_once_per_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(pictures, "write_atomically", refuse)  # root may write everywhere

    assert prepare(PICTURES, lambda *_: None)
    assert not prepare(PICTURES, lambda *_: None)
    monkeypatch.setattr(pictures, "_DECODED", set())
    assert prepare(PICTURES, lambda *_: None)


def test_all_damaged_images_are_counted(folder: Path) -> None:
    for path in folder.glob("*/bee/*"):
        path.write_bytes(b"garbage")

    with pytest.raises(UserError, match=r"neither JPEG nor PNG \(and 4 more such images\)"):
        require_readable(PICTURES)


def test_a_row_that_cannot_be_decoded_is_named(shards: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": encoded(1)[:60], "path": None}] * 3, "label": [0, 1, 0]}
    datasets.Dataset.from_dict(rows).to_parquet(shards / "train-1.parquet")

    with pytest.raises(UserError, match=r"PNG in row 3 of the parquet files, found .* 2 more"):
        require_readable(PICTURES)


def test_a_class_without_training_images_is_named(folder: Path) -> None:
    (folder / "val/cat").mkdir()
    (folder / "val/cat/0.png").write_bytes(encoded(0))

    assert f"the class of {folder}/val/cat/0.png among the classes" in _refused(PICTURES)


def test_missing_images_are_counted(folder: Path) -> None:
    (folder / "train/bee/1.png").unlink()

    message = "expected 6 training and 4 evaluation samples, found 5 and 4"
    assert message in _refused(PICTURES)
    with pytest.raises(UserError, match=message):
        require_readable(PICTURES)


def test_a_truncated_shard_is_refused_by_name(shards: Path) -> None:
    path = shards / "train-1.parquet"
    path.write_bytes(path.read_bytes()[:-100])

    assert f"expected {path} to be a whole parquet file" in _refused(PICTURES)


def test_a_damaged_shard_is_refused_by_name(shards: Path) -> None:
    for path in shards.glob("train*.parquet"):
        content = path.read_bytes()
        path.write_bytes(content[:4] + bytes(len(content) - 8) + content[-4:])

    assert f"expected parquet files like {shards}/train-0.parquet with" in _refused(PICTURES)


def test_cifar_10_in_class_folders_is_decoded_into_memory(folder: Path) -> None:
    splits = load(CIFAR)

    assert splits.train.inputs.shape == (6, 32, 32, 3)
    assert splits.train.inputs[:, 5, 5, 0].tolist() == [0, 10, 20, 100, 110, 120]
    assert len(check_data(CIFAR)) == 64


@pytest.mark.parametrize("content", [b"\x89PNG\r\n", encoded(5, size_px=40)])
def test_an_image_that_is_damaged_or_of_another_size_is_named(folder: Path, content: bytes) -> None:
    path = folder / "train/ape/2.png"
    path.write_bytes(content)

    with pytest.raises(UserError, match=f"JPEG or PNG of 32 x 32 pixels in {path}, found "):
        require_readable(CIFAR)
    assert f"an image of 32 x 32 pixels in {path}, found " in _refused(CIFAR)


def test_files_of_torchvision_are_verified_by_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchvision")
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"no pickle of ours")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))

    message = _refused(CIFAR)

    assert f"expected CIFAR-10 in {tmp_path}, found damaged files; let torchvision" in message
