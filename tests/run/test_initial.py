"""Given weights: their file and hash, their evaluation before the clock, and what judges it."""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.run.attempt import write_head
from hybridperf.run.initial import find_initial_weights, judge_initial_weights
from hybridperf.run.timed_run import OutOfTurnError
from hybridperf.tasks.data import load
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Initial
from tests.run.served import join, served
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.run.initial import InitialWeights
    from hybridperf.run.spec import RunSpec
    from hybridperf.run.timed_run import TimedRun
    from hybridperf.tasks.task import Task

CONTENT = b"weights"
ZEROS = float((load(find_task("resnet/laptop").data).evaluation.labels == 0).mean())


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task that begins from a file in the folder of the data."""
    (tmp_path / "model.safetensors").write_bytes(CONTENT)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    digest = sha256(CONTENT).hexdigest()
    stated = Initial("model.safetensors", digest, "torchvision", ZEROS, tolerance=0.01)
    return dataclasses.replace(find_task("resnet/laptop"), initial=stated)


def _initial(task: Task, own: Path | None = None) -> InitialWeights:
    found = find_initial_weights(task, own)
    assert found is not None
    return found


def _begun(folder: Path, initial: InitialWeights, **fields: object) -> RunSpec:
    folder.mkdir()
    spec = run_spec(folder, initial=initial, **fields)
    write_head(spec)
    return spec


def _predict(run: TimedRun, classes: int) -> None:
    with run.initial_evaluation() as samples:
        for chunk in samples.chunks(0, 1, 64):
            samples.predict(chunk, np.full(chunk.stop - chunk.start, classes))


def test_the_file_of_the_task_is_verified(given: Task, tmp_path: Path) -> None:
    found = _initial(given)

    assert found.path == str(tmp_path / "model.safetensors")
    assert found.facts == {"file": "model.safetensors", "sha256": sha256(CONTENT).hexdigest()}
    assert find_initial_weights(find_task("resnet/laptop"), None) is None


def test_a_file_of_another_hash_is_refused(given: Task, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other weights")

    with pytest.raises(UserError) as refusal:
        find_initial_weights(given, None)
    assert refusal.value.exit_code == ExitCode.ENVIRONMENT
    assert "expected weights with SHA-256" in str(refusal.value)
    assert str(refusal.value).endswith("begin from others with --initial in the open division.")


@pytest.mark.parametrize("name", ["", "absent.safetensors"])
def test_a_file_that_is_missing_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="expected a file of weights, found"):
        find_initial_weights(find_task("resnet/laptop"), tmp_path / name)


def test_weights_of_the_users_are_for_the_open_division(tmp_path: Path) -> None:
    own = tmp_path / "mine.safetensors"

    (finding,) = judge_initial_weights(own, "closed")
    assert finding.sentence.endswith("or enter the open division with --division open.")
    assert judge_initial_weights(own, "open") == judge_initial_weights(None, "closed") == []


def test_weights_are_evaluated_before_the_clock(given: Task, tmp_path: Path) -> None:
    spec = _begun(tmp_path / "run", _initial(given))
    with served(spec) as server:
        run = join(server, spec)
        assert run.initial == tmp_path / "model.safetensors"
        assert run.initial_format == "torchvision"
        _predict(run, 0)
        with run, run.clock():
            pass

    log = read_log(spec.log)
    entry, stop = log.first(keys.INITIAL), log.first(keys.INIT_STOP)
    assert entry is not None
    assert stop is not None
    assert entry.value == {**_initial(given).facts, "quality": ZEROS}
    assert entry.line < stop.line


def test_a_first_quality_other_than_stated_ends_before_the_clock(
    given: Task, tmp_path: Path
) -> None:
    initial = dataclasses.replace(_initial(given), quality=0.5)
    spec = _begun(tmp_path / "run", initial)
    with served(spec) as server:
        run = join(server, spec)
        with pytest.raises(UserError) as refusal:
            _predict(run, 0)
        with run, pytest.raises(OutOfTurnError, match="Ready while evaluating"), run.clock():
            pass

    assert str(refusal.value) == (
        "model.safetensors: expected a first quality of 0.5 +- 0.01, as the task states, found "
        f"{ZEROS:.5f}; use the weights and the data of the task."
    )
    assert read_log(spec.log).first(keys.RUN_START) is None


def test_a_run_that_leaves_the_evaluation_out_does_not_start(given: Task, tmp_path: Path) -> None:
    spec = _begun(tmp_path / "run", _initial(given))
    with served(spec) as server:
        run = join(server, spec)
        with run, pytest.raises(OutOfTurnError, match="Ready while loading"), run.clock():
            pass


def test_a_resumed_run_does_not_begin_again(given: Task, tmp_path: Path) -> None:
    spec = _begun(tmp_path / "run", _initial(given), resumed=2)
    with served(spec) as server:
        run = join(server, spec)
        assert run.initial is None
        with run, run.clock():
            pass


def test_any_quality_is_taken_of_weights_of_the_users(tmp_path: Path) -> None:
    own = tmp_path / "mine.safetensors"
    own.write_bytes(CONTENT)
    initial = _initial(find_task("resnet/laptop"), own)

    assert initial.mismatch(0.3) == ""
    assert initial.format is None
