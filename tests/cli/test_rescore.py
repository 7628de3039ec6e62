"""``hybridperf rescore``: predictions are counted again, and weights predict again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridperf.rules.evidence import encoded, read_classes
from tests.evidence import keep_models
from tests.packages import edit_manifest, write_result
from tests.run.conftest import Bench, bench, finished

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hybridperf.log.package import Package
    from tests.run.conftest import Finished

__all__ = ["bench"]


@pytest.fixture
def package(tmp_path: Path) -> Package:
    package = write_result(tmp_path / "made")
    keep_models(package)
    return package


def test_predictions_are_counted_again(
    hybridperf: Callable[..., Finished], package: Package
) -> None:
    done = hybridperf("rescore", str(package.folder), "--format", "json")

    rows = json.loads(done.out)
    assert done.code == 0
    assert [row["run"] for row in rows] == [0, 1, 2, 3, 4]
    assert all(row["counted"] == row["stated"] for row in rows)
    assert all(row["predicted_again"] is None for row in rows)


def test_predictions_of_another_quality_are_named(
    hybridperf: Callable[..., Finished], package: Package
) -> None:
    path = package.folder / "predictions_3.npy"
    classes = read_classes(path)
    classes[0] = (classes[0] + 1) % 10
    path.write_bytes(encoded(classes))

    done = hybridperf("rescore", str(package.folder))

    assert done.code == 3
    assert [line.endswith("have another") for line in done.out.splitlines()] == [
        number == 3 for number in range(5)
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no array of numbers"),
        (encoded(np.zeros(601, dtype=np.int64)), "predictions of shape (601,)"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "no array of numbers"),  # a pickle
    ],
)
def test_what_is_no_prediction_is_named(
    hybridperf: Callable[..., Finished], package: Package, content: bytes, words: str
) -> None:
    (package.folder / "predictions_0.npy").write_bytes(content)

    done = hybridperf("rescore", str(package.folder))

    assert done.code == 3
    assert words in done.out.splitlines()[0]


def test_another_version_of_the_task_is_refused(
    hybridperf: Callable[..., Finished], package: Package
) -> None:
    task = json.loads((package.folder / "result_0.json").read_text())["task"]
    edit_manifest(package, 0, task=task | {"sha256": "0" * 64})

    done = hybridperf("rescore", str(package.folder))

    assert done.code == 3
    assert "use the version of the suite that the result names" in done.sentence


def test_a_real_models_weights_predict_again_and_no_others_do(bench: Bench, tmp_path: Path) -> None:
    """One epoch of the reference; what it kept is scored again, elsewhere too, and damaged."""
    bench.change_task(epochs=1)
    kept = bench.command(
        *("run", "resnet/laptop", "--runs", "1", "--keep-weights", "--out", str(bench.out))
    )
    assert finished(kept).code == 1  # it misses its target
    (weights,) = bench.out.rglob("weights_0_part_0.safetensors")
    folder = str(weights.parent)

    beside = bench.say("rescore", folder, "--format", "json")
    (row,) = json.loads(beside.out)
    assert beside.code == 0
    assert row["stated"] == row["counted"] == row["predicted_again"]

    elsewhere = tmp_path / "fetched"
    elsewhere.mkdir()
    moved = weights.rename(elsewhere / weights.name)
    away = bench.say("rescore", folder, "--weights", str(elsewhere), "--format", "json")
    assert json.loads(away.out) == [row]
    missing = bench.say("rescore", folder, "--format", "json")
    assert json.loads(missing.out)[0]["predicted_again"] is None

    content = bytearray(moved.read_bytes())
    content[-1] ^= 1
    moved.write_bytes(content)
    damaged = bench.say("rescore", folder, "--weights", str(elsewhere))
    assert damaged.code == 3
    assert "expected weights with SHA-256" in damaged.sentence
    assert bench.rules_broken() == set()
    moved.rename(weights)
    assert bench.rules_broken() == {"result.weights"}
