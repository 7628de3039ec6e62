"""Real images: CIFAR-10 as JPEG in class folders, read, trained on, and damaged."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest
import torch

from hybridperf.errors import ExitCode, UserError
from hybridperf.rules.check import check_path
from hybridperf.run.access import TrainingData
from hybridperf.run.ending import explain_crash
from hybridperf.tasks.data import Samples, check_data, load
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.registry import find_task, task_path
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.input import Input, ReadingRole
from hybridperf_reference.engine.timing import StepTimer
from hybridperf_reference.images.objective import image_objective
from tests.cli.test_whole_command import COMMAND
from tests.run.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.tasks.task import Data, Task

    Damage = Callable[[bytes], bytes]

Image = pytest.importorskip("PIL.Image", reason="Pillow, which decodes the images, is not here")

ARCHIVE: Final = ROOT.parent / "shared" / "data" / "cifar10_jpeg.tar.xz"
pytestmark = pytest.mark.skipif(
    not ARCHIVE.is_file(),
    reason="CIFAR-10 is not in ../shared/data; it is not part of the project",
)

COUNTS: Final = {"train": 12, "test": 4}  #: images that are taken of each class
CLASSES: Final = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
BROKEN: Final = "train/cat/0003.jpg"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the first images of every class, unpacked."""
    root = tmp_path_factory.mktemp("cifar10")
    with tarfile.open(ARCHIVE, "r|xz") as archive:
        for member in archive:
            inside = PurePath(member.name)  # such as cifar_jpg/train/cat/0003.jpg
            if member.isfile() and int(inside.stem) < COUNTS[inside.parts[1]]:
                content = archive.extractfile(member)
                assert content is not None
                path = root.joinpath(*inside.parts[1:])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    return root


@pytest.fixture
def folder(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of them, where data is looked for."""
    copy = shutil.copytree(original, tmp_path / "images")
    monkeypatch.setenv(DATA_VARIABLE, str(copy))
    return copy


def _subset(task: Task) -> Task:
    train, held_out = (len(CLASSES) * COUNTS[part] for part in ("train", "test"))
    data = dataclasses.replace(task.data, train_samples=train, eval_samples=held_out)
    return dataclasses.replace(task, data=data)


def _cifar() -> Data:
    return _subset(find_task("resnet/workstation")).data


def _pictures() -> Task:
    return _subset(find_task("resnet50/cluster"))


def test_real_class_folders_are_read(folder: Path) -> None:
    splits = load(_cifar())

    assert splits.train.inputs.shape == (120, 32, 32, 3)
    assert splits.evaluation.inputs.shape == (40, 32, 32, 3)
    assert splits.train.labels.tolist() == [number for number in range(10) for _ in range(12)]
    assert sorted(path.name for path in (folder / "train").iterdir()) == list(CLASSES)
    for index, name in ((0, "train/airplane/0000.jpg"), (119, "train/truck/0011.jpg")):
        with Image.open(folder / name) as image:
            assert np.array_equal(splits.train.inputs[index], np.asarray(image.convert("RGB")))
    shares = splits.train.inputs.mean(axis=(0, 1, 2)) / 255
    means = find_task("resnet/workstation").data.channel_means
    assert np.abs(shares - means).max() < 0.1  # they look like the images that the task states


def test_the_workstation_model_trains_on_real_images(folder: Path, tmp_path: Path) -> None:
    text = task_path("resnet/workstation").read_text()
    for old, new in {
        'name = "resnet/workstation"': 'name = "resnet/subset"',
        "width = 64": "width = 16",  # oneDNN has crashed on convolutions of 4 channels
        "train_samples = 50000": "train_samples = 120",
        "eval_samples = 10000": "eval_samples = 40",
        "target = 0.94": "target = 0.0",
        "epochs = 30\ninit": "epochs = 1\ninit",
        "count = 5": "count = 1",
        "most_missed = 1": "most_missed = 0",
        "global_batch_size = 512": "global_batch_size = 32",
    }.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "subset.toml").write_text(text)

    done = subprocess.run(
        [*COMMAND, "run", "subset.toml", "--plan", "dp=2", "--out", "out", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["findings"] == []
    assert check_path(tmp_path / "out").findings == ()
    (log,) = (tmp_path / "out").rglob("result_0.txt")
    entries = [json.loads(line.partition(":::MLLOG ")[2]) for line in log.read_text().splitlines()]
    (statistics,) = (
        entry["value"]
        for entry in entries
        if entry["key"] == "tracked_stats" and "loss" in entry["value"]
    )
    assert statistics["losses_not_finite"] == 0
    assert statistics["loader_samples_per_s"] > statistics["compute_samples_per_s"] > 0
    assert str(folder) not in log.read_text()


def test_folders_and_parquet_of_the_same_images_give_the_same_tensors(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("torchvision")
    task = _pictures()
    files = load(task.data)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    shards = tmp_path / "shards"
    shards.mkdir()
    for name, samples in (("train", files.train), ("validation", files.evaluation)):
        images = [{"bytes": each.content, "path": None} for each in samples.inputs[:]]
        table = datasets.Dataset.from_dict({"image": images, "label": samples.labels.tolist()})
        table.to_parquet(shards / f"{name}-00000-of-00001.parquet")
    monkeypatch.setenv(DATA_VARIABLE, str(shards))
    rows = load(task.data)

    objective, indices = image_objective(task, 64), np.array([5, 119, 0, 64])
    read = [
        (objective.prepare(*objective.read(*which)), objective.targets(*which))
        for which in ((splits.train, indices, 3, 2) for splits in (files, rows))
    ]

    for one, other in zip(*read, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(
        objective.evaluation(files.evaluation.inputs[3:9]),
        objective.evaluation(rows.evaluation.inputs[3:9]),
    )
    assert np.array_equal(files.evaluation.labels, rows.evaluation.labels)


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _shrunk(content: bytes) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        image.resize((1, 1)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (_cut, "image file is truncated|Truncated File Read"),
        (lambda content: content[:2], "neither JPEG nor PNG"),
        (lambda _: b"not an image\n", "neither JPEG nor PNG"),
        (_shrunk, "an image of 1 x 1"),
    ],
)
def test_an_image_of_cifar_10_that_is_damaged_is_named_in_one_sentence(
    folder: Path, damage: Damage, found: str
) -> None:
    path = folder / BROKEN
    path.write_bytes(damage(path.read_bytes()))
    check_data(_cifar())  # which looks at names and sizes

    with pytest.raises(UserError) as refusal:
        load(_cifar())

    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert re.fullmatch(
        f"data set cifar10: expected an image of 32 x 32 pixels in {re.escape(str(path))}, "
        rf"found ({found}).*; fetch it again\.",
        str(refusal.value),
    )


def test_an_empty_file_is_named_before_anything_starts(folder: Path) -> None:
    (folder / BROKEN).write_bytes(b"")

    for data in (_cifar(), _pictures().data):
        with pytest.raises(
            UserError, match=re.escape(f"an image in {folder / BROKEN}, found an e")
        ):
            check_data(data)


@pytest.mark.parametrize("damage", [_cut, lambda _: b"not an image\n"])
def test_a_crash_is_attributed_to_the_image_that_a_worker_cannot_decode(
    folder: Path, capfd: pytest.CaptureFixture[str], damage: Damage
) -> None:
    pytest.importorskip("torchvision")
    path, task = folder / BROKEN, _pictures()
    path.write_bytes(damage(path.read_bytes()))
    training = dataclasses.replace(task.training, global_batch_size=24)
    task = dataclasses.replace(task, training=training)
    train: Samples = load(task.data).train
    data = TrainingData(train, task, 5, Block(1, 1), lambda: None)
    objective, device = image_objective(task, 32), torch.device("cpu")

    with pytest.raises(RuntimeError):
        list(Input(objective, device, ReadingRole()).train(data, slice(0, 24), StepTimer(device)))

    reason = explain_crash(capfd.readouterr().err, 1)
    assert reason.startswith(
        f"the trainer failed: RuntimeError: {path}: expected a JPEG or PNG, found: "
    )
