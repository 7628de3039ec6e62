"""Of the models that ranks hand over the last is kept, and one before it, each as likely."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np

from hybridperf.run.access import seal_bytes
from hybridperf.run.evaluation import load_predictions
from hybridperf.run.models import Models
from hybridperf.run.spec import RunSpec, weights_parts
from tests.run_spec import run_spec


def _kept(folder: Path, epochs: int) -> RunSpec:
    """Hand the model of each epoch over, and return the specification of the one that was drawn."""
    folder.mkdir()
    spec = run_spec(folder, plan="dp=1,pp=2")
    spec.work.mkdir()
    spec.weights.mkdir()
    (spec.weights / "part_7.safetensors").write_bytes(b"saved by the trainer itself")
    with contextlib.closing(Models(spec)) as models:
        for epoch in range(1, epochs + 1):
            for rank in range(2):
                content = f"{rank} of epoch {epoch}".encode()
                models.take(rank, seal_bytes(b"refused"), 7)
                models.take(rank, seal_bytes(content), len(content))
            found = models.conclude(epoch, np.full(3, epoch))
            assert found == {"ranks": 2, "bytes": 2 * len(content)}
        models.save()
    assert [each.read_bytes() for each in weights_parts(spec.weights)] == [
        f"{rank} of epoch {epochs}".encode() for rank in range(2)
    ]
    return RunSpec.read(spec.earlier) if spec.earlier.exists() else spec


def test_one_of_the_models_before_the_last_is_drawn(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    drawn = list[int]()
    for nth in range(100):
        spec = _kept(tmp_path / f"{nth}", epochs=4)
        assert spec.epoch is not None
        assert [each.read_bytes() for each in weights_parts(spec.weights)] == [
            f"{rank} of epoch {spec.epoch}".encode() for rank in range(2)
        ]
        assert load_predictions(spec.timed_predictions).tolist() == [spec.epoch] * 3
        drawn.append(spec.epoch)

    assert set(drawn) == {1, 2, 3}  # but for a chance of 1e-17
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_of_one_evaluation_none_is_drawn(tmp_path: Path) -> None:
    assert _kept(tmp_path / "run", epochs=1).epoch is None


def test_a_last_evaluation_without_weights_leaves_what_the_trainer_saved(tmp_path: Path) -> None:
    spec = run_spec(tmp_path)
    with contextlib.closing(Models(spec)) as models:
        models.take(0, seal_bytes(b"abc"), 3)
        models.conclude(1, np.zeros(3, dtype=np.int64))

        assert models.conclude(2, np.zeros(3, dtype=np.int64)) == {}

        models.save()
    assert not spec.weights.exists()
    assert not spec.earlier.exists()
