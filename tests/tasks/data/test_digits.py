from __future__ import annotations

import csv
import dataclasses
import gzip
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.tasks.data import check_data, drop_from_page_cache, load
from hybridperf.tasks.data.digits import Digits
from hybridperf.tasks.registry import find_task

if TYPE_CHECKING:
    from hybridperf.tasks.task import Data


@pytest.fixture
def data() -> Data:
    return find_task("resnet/laptop").data


def _source() -> Path:
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _use(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(Digits, "files", lambda *_: [path])


def _refused(data: Data) -> str:
    with pytest.raises(UserError) as refusal:
        check_data(data)
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert len(str(refusal.value).splitlines()) == 1
    assert str(refusal.value).endswith(".")
    return str(refusal.value)


def test_the_split_follows_the_published_rule(data: Data) -> None:
    # "images 0, 3, 6, ... of each class, in file order, are held out for evaluation"
    seen = dict.fromkeys(range(10), 0)
    train: list[tuple[list[int], int]] = []
    held_out: list[tuple[list[int], int]] = []
    with gzip.open(_source(), "rt") as file:
        for row in csv.reader(file):
            *ink, label = (int(float(cell)) for cell in row)
            (held_out if seen[label] % 3 == 0 else train).append((ink, label))
            seen[label] += 1

    splits = load(data)

    assert (len(train), len(held_out)) == (1195, 602)
    for part, rows in ((splits.train, train), (splits.evaluation, held_out)):
        grey = [[round(cell * 255 / 16) for cell in ink] for ink, _ in rows]
        assert part.labels.tolist() == [label for _, label in rows]
        assert part.inputs.reshape(len(part), -1).tolist() == grey


def test_the_splits_are_disjoint_and_of_the_stated_sizes(data: Data) -> None:
    splits = load(data)

    # The source holds no image twice, so equal images would be the same sample.
    train, held_out = (
        {image.tobytes() for image in part.inputs} for part in (splits.train, splits.evaluation)
    )
    assert len(splits.train) == len(train) == data.train_samples == 1195
    assert len(splits.evaluation) == len(held_out) == data.eval_samples == 602
    assert train & held_out == set()


def test_images_are_bytes_and_every_class_is_in_both_splits(data: Data) -> None:
    for part in (load(data).train, load(data).evaluation):
        assert part.inputs.shape == (len(part), 8, 8)
        assert part.inputs.dtype == np.uint8
        assert part.labels.dtype == np.int64
        assert set(part.labels.tolist()) == set(range(10))


def test_present_data_is_accepted_and_can_be_dropped_from_the_page_cache(data: Data) -> None:
    check_data(data)
    drop_from_page_cache(data)

    assert len(load(data).train) == data.train_samples


def test_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(gzip.decompress(_source().read_bytes())[:-1]))
    _use(monkeypatch, path)

    says = _refused(data)

    assert "expected data with SHA-256 6ebb3d2fee24..., found " in says
    assert "reinstall scikit-learn" in says


@pytest.mark.parametrize("length", [0, 5, 1000])
def test_a_truncated_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Data, length: int
) -> None:
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(_source().read_bytes()[:length])
    _use(monkeypatch, path)

    assert "digits" in _refused(data)


@pytest.mark.parametrize("first", [0, 60, 3000, -8])
def test_a_damaged_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Data, first: int
) -> None:
    content = bytearray(_source().read_bytes())
    content[first : first + 4] = b"\xff" * 4
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(content)
    _use(monkeypatch, path)

    assert "expected a readable gzip file" in _refused(data)


def test_a_missing_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: Data
) -> None:
    _use(monkeypatch, tmp_path / "absent.csv.gz")

    assert "No such file" in _refused(data)


def test_a_missing_package_is_refused(monkeypatch: pytest.MonkeyPatch, data: Data) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    says = _refused(data)

    assert "expected the package scikit-learn" in says
    assert "pip install scikit-learn" in says


def test_other_counts_than_the_task_states_are_refused(data: Data) -> None:
    with pytest.raises(UserError) as refusal:
        load(dataclasses.replace(data, train_samples=1000))

    assert refusal.value.exit_code is ExitCode.ENVIRONMENT
    assert "expected 1000 training and 602 evaluation samples, found 1195 and 602" in str(
        refusal.value
    )
