"""Data in a folder that the command names: found, trained on, and its place told to nobody."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.registry import task_path
from tests.cli.test_whole_command import COMMAND, NEAREST
from tests.run.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

Image = pytest.importorskip("PIL.Image", reason="Pillow, which writes the images, is not here")

DATA = """[data]
name = "cifar10"
source = "ten images"
sha256 = ""
split = "as folders say"
train_samples = 6
eval_samples = 4
editions = {}

"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Return a task of ten images of two classes, which one run makes a result of."""
    text = re.sub(r"(?s)\[data\].*?(?=\[quality\])", DATA, task_path("resnet/laptop").read_text())
    text = text.partition("# Ten runs")[0].partition("[reference]")[0]
    for old, new in {
        'name = "resnet/laptop"': 'name = "mine/tiny"',
        "global_batch_size = 32": "global_batch_size = 2",
        "count = 5": "count = 1",
    }.items():
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "tiny.toml"
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a tree of images: three of each class to train on, and two to evaluate."""
    root = tmp_path / "private"
    for part, count in (("train", 3), ("val", 2)):
        for number, name in enumerate(("ape", "bee")):
            (root / part / name).mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (32, 32), (100 * number + 10 * index, 0, 0))
                image.save(root / part / name / f"{index}.png")
    return root


def test_a_run_finds_data_where_told_and_keeps_the_place_to_itself(
    tmp_path: Path, task: Path, folder: Path
) -> None:
    variables = {key: value for key, value in os.environ.items() if key != DATA_VARIABLE}
    run = ("run", task.name, *NEAREST, "--runs", "1", "--json")

    def start(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *run, "--out", "out", *options],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=variables | {"PYTHONPATH": str(ROOT)},
        )

    without = start()
    done = start("--data-dir", folder.name)

    assert without.returncode == 4
    assert "name it with --data-dir or in the variable HYBRIDPERF_DATA" in without.stderr
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["findings"] == []
    (manifest,) = tmp_path.rglob("out/**/result_0.json")
    assert re.fullmatch("[0-9a-f]{64}", json.loads(manifest.read_text())["data_sha256"])
    for path in manifest.parents[4].rglob("*"):
        assert path.is_dir() or folder.name.encode() not in path.read_bytes()
