"""The steps of a plan are timed by ranks that start as those of a run do, and end early."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from typing import TYPE_CHECKING

import psutil
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.plan import ParallelPlan
from hybridperf.run import step_time
from hybridperf.run.launcher import bytecode_folder
from hybridperf.run.request import RunRequest
from hybridperf.run.step_time import measure_steps
from hybridperf.tasks.registry import task_path
from tests.run.conftest import FAULTY

if TYPE_CHECKING:
    from pathlib import Path

PAUSE_S = 0.02  #: of the trainer in every step under the fault "slow"


@pytest.fixture
def request_of_faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    bytecode_folder()  # lasts as long as this process
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return RunRequest(
        task_path=task_path("resnet/laptop"),
        plan=ParallelPlan.parse("dp=1"),
        runs=1,
        out=tmp_path / "runs",
        trainer=FAULTY,
        division="open",
        mode="open",  # the sandbox keeps variables of the environment from ranks
    )


def test_the_pauses_of_a_trainer_are_in_the_time_of_its_steps(
    request_of_faulty: RunRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "slow")
    before = set(psutil.Process().children(recursive=True))

    found = measure_steps(request_of_faulty, 20)

    assert 1 <= found.steps < 37  # those of an epoch; fewer than 20 if they were noticed late
    if found.steps >= 10:  # times of files are up to 4 ms apart
        assert found.step_s > 0.9 * PAUSE_S
    assert set(psutil.Process().children(recursive=True)) <= before
    assert list(tmp_path.iterdir()) == []  # no result, and no scratch folder


def test_a_task_of_ones_own_is_measured_too(
    request_of_faulty: RunRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "slow")
    own = tmp_path / "own.toml"
    own.write_text(task_path("resnet/laptop").read_text().replace("resnet/laptop", "own/task", 1))

    found = measure_steps(dataclasses.replace(request_of_faulty, task_path=own), 5)

    assert found.steps >= 1


def test_ranks_that_fail_are_reported(
    request_of_faulty: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "early")

    with pytest.raises(UserError, match="plan 'dp=1' could not be measured: ") as refused:
        measure_steps(request_of_faulty, 20)
    assert refused.value.exit_code is ExitCode.ENVIRONMENT


def test_steps_that_a_failing_rank_took_are_not_reported(
    request_of_faulty: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT", "early")
    beats = itertools.chain([(5, 1.0)], itertools.repeat((6, 1.1)))
    monkeypatch.setattr(step_time._StepWatch, "_last_beat", lambda _: next(beats))

    with pytest.raises(UserError, match="plan 'dp=1' could not be measured: "):
        measure_steps(request_of_faulty, 20)


def test_too_few_steps_before_an_evaluation_are_refused(request_of_faulty: RunRequest) -> None:
    few = (("training.global_batch_size", 250),)

    with pytest.raises(UserError, match=r"at least 6 steps before .* found 4; lower") as refused:
        measure_steps(dataclasses.replace(request_of_faulty, overrides=few), 20)
    assert refused.value.exit_code is ExitCode.USAGE
