"""The parts that runs are made of, one by one."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.package import Package
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock
from hybridperf.plan import ParallelPlan
from hybridperf.run import consistency, run_set
from hybridperf.run.attempt import write_head
from hybridperf.run.child import PARENT_VARIABLE
from hybridperf.run.files import canonical_json
from hybridperf.run.folder import locked
from hybridperf.run.processes import Pulse, end_processes, processes_of, read_pulse
from hybridperf.run.provenance import package_folder
from hybridperf.run.request import RunRequest
from hybridperf.run.spec import RUN_VARIABLE, RunSpec
from hybridperf.run.timed_run import OutOfTurnError
from hybridperf.system.describe import describe
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import find_task, task_path
from tests.run.conftest import FAULTY, OPEN, ROOT, finished, wait_until
from tests.run.served import join, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hybridperf.run.timed_run import TimedRun
    from hybridperf.tasks.task import Block
    from tests.run.conftest import Bench


def test_a_pulse_is_what_each_rank_last_noted(tmp_path: Path) -> None:
    path = tmp_path / "pulse.bin"
    assert read_pulse(path, 2) == [0, 0]
    pulses = [Pulse(path, rank) for rank in (2, 0)]
    for _ in range(3):
        pulses[0].beat()
    pulses[1].beat()
    assert read_pulse(path, 4) == [1, 0, 3, 0]
    for pulse in pulses:
        pulse.close()
    path.write_bytes(path.read_bytes()[:10])  # cut off
    assert read_pulse(path, 3) == [1, 0, 0]


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    (tmp_path / "run").mkdir()
    return RunSpec(
        folder=str(tmp_path / "run"),
        attempt=3,
        task_path=str(task_path("resnet/laptop")),
        trainer=FAULTY,
        overrides={"optimizer.lr": 0.05, "optimizer.name": "sgd", "training.global_batch_size": 64},
        plan="dp=2,pp=2,schedule=gpipe,microbatches=4",
        seed=2**31 - 1,
        org="local",
        platform="here",
        division="open",
        clock=LogClock(),
    )


def test_an_order_comes_back_as_it_was_written(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec.write()
    assert RunSpec.read(spec.path) == spec
    monkeypatch.setenv(RUN_VARIABLE, str(spec.path))
    assert RunSpec.from_environment() == spec
    assert spec.task().training.global_batch_size == 64
    moved = Path(spec.folder).rename(Path(spec.folder).with_name("moved"))
    assert RunSpec.read(moved / "run.json") == dataclasses.replace(spec, folder=str(moved))
    monkeypatch.delenv(RUN_VARIABLE)
    with pytest.raises(RuntimeError, match="start this trainer with 'hybridperf run'"):
        RunSpec.from_environment()


@pytest.mark.parametrize(
    ("plan", "span"), [("dp=2,microbatches=4", 8), ("dp=2,microbatches=4,bn=sync", 16)]
)
def test_the_head_says_what_batchnorm_spans(spec: RunSpec, plan: str, span: int) -> None:
    spec = dataclasses.replace(spec, plan=plan)
    write_head(spec)
    assert read_log(spec.log).value(keys.MODEL_BN_SPAN) == span


def test_of_twenty_processes_exactly_one_locks_a_folder(tmp_path: Path) -> None:
    package = Package(tmp_path, "org", "system", "task")
    for _ in range(5):
        assert sorted(_race(package, 20)) == [b"lost"] * 19 + [b"won!"]


def _race(package: Package, count: int) -> list[bytes]:
    start, hold, said = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(count):
        child = os.fork()
        if child == 0:
            os.close(start[1])
            os.close(hold[1])
            os.read(start[0], 1)  # until every process is there
            try:
                with locked(package):
                    os.write(said[1], b"won!")
                    os.read(hold[0], 1)  # until all have tried
            except UserError as refusal:
                lost = refusal.exit_code is ExitCode.ENVIRONMENT
                os.write(said[1], b"lost" if lost else b"what")
            finally:
                os._exit(0)
        children.append(child)
    os.close(start[1])
    answers = b""
    while len(answers) < 4 * count:
        answers += os.read(said[0], 4 * count)
    os.close(hold[1])
    for child in children:
        os.waitpid(child, 0)
    for descriptor in (start[0], hold[0], *said):
        os.close(descriptor)
    return [answers[place : place + 4] for place in range(0, len(answers), 4)]


class Silent:
    """An observer who has nothing to say."""

    def begin(self, *_: object) -> None: ...

    def progress(self, *_: object) -> None: ...

    def segment(self, *_: object) -> None: ...

    def sealed(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("changes", "trainer", "expected"),
    [
        (
            {"overrides": (("optimizer.lr", 0.05),)},
            "0" * 64,
            "expected overrides {}, as in the runs",
        ),
        ({"division": "closed"}, "0" * 64, "expected division open"),
        ({"plan": ParallelPlan(microbatches=2)}, "0" * 64, "expected plan dp=1"),
        ({"trainer": "tests.trainers.nearest"}, "0" * 64, "expected trainer tests.trainers.faulty"),
        ({}, "1" * 64, "expected trainer_sha256 000000"),
    ],
)
def test_runs_of_another_configuration_do_not_join_a_result(
    finished_run: Path,
    changes: dict[str, Any],
    trainer: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_set, "describe_with_torch", describe)
    facts = {"trainer_sha256": trainer, "suite_sha256": "0" * 64}
    monkeypatch.setattr(consistency, "code_hashes", lambda name: facts | {"trainer": name})
    (system,) = finished_run.rglob("systems/*.json")
    order = RunRequest(task_path("resnet/laptop"), ParallelPlan(), 2, finished_run, trainer=FAULTY)
    how = {"system": system.stem, "division": "open"} | changes
    order = dataclasses.replace(order, **how)
    if "division" in changes:  # the system's entry names the division as well
        system.write_bytes(canonical_json(json.loads(system.read_text()) | {"division": "closed"}))
    with pytest.raises(UserError, match="choose a new entry with --system NAME") as refusal:
        list(run_set.make_run_set(order, Silent()))
    assert expected in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.USAGE


def test_the_command_that_a_remedy_names_makes_the_missing_runs(bench: Bench) -> None:
    bench.change_task(count=2)
    done = bench.run(runs=1)
    remedy = "give the command again with --runs 2: it makes the missing run."
    assert f"expected 2 completed runs, found 1; {remedy}" in done.out

    trainer = ("--trainer", FAULTY, *OPEN, "--out", str(bench.out))
    command = bench.command("run", "resnet/laptop", *trainer, "--runs", "2")
    assert finished(command).code == 0

    assert bench.outcomes() == ["success", "success"]


def test_runs_on_another_system_do_not_join_a_result(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (system,) = finished_run.rglob("systems/*.json")
    changed = describe() | {"host_memory_capacity": "1 TB"}
    monkeypatch.setattr(run_set, "describe_with_torch", lambda **_: changed)
    path = task_path("resnet/laptop")
    order = RunRequest(path, ParallelPlan(), 2, finished_run, trainer=FAULTY, division="open")
    order = dataclasses.replace(order, system=system.stem)
    before = json.loads(system.read_text())["host_memory_capacity"]
    with pytest.raises(UserError, match="expected host_memory_capacity ") as refusal:
        list(run_set.make_run_set(order, Silent()))
    assert f"host_memory_capacity {before!r}, as on the system" in str(refusal.value)
    assert "found '1 TB'; choose a new entry with --system NAME" in str(refusal.value)
    assert refusal.value.exit_code is ExitCode.USAGE


def test_the_first_field_that_differs_is_named_by_its_place(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (system,) = finished_run.rglob("systems/*.json")
    kept = json.loads(system.read_text())
    path = task_path("resnet/laptop")
    order = RunRequest(path, ParallelPlan(), 2, finished_run, trainer=FAULTY, division="open")
    order = dataclasses.replace(order, system=system.stem)
    threads = copy.deepcopy(kept)
    threads["hybridperf"]["software"]["environment"]["OMP_NUM_THREADS"] = "77"
    for edited, expected in (
        (threads, "software.environment.OMP_NUM_THREADS '77', as on the system of the earlier"),
        (kept | {"hybridperf": kept["hybridperf"] | {"processor": {"model": "Z80"}}}, "processor."),
        ({key: value for key, value in kept.items() if key != "framework"}, "framework none, as"),
    ):
        system.write_bytes(canonical_json(edited))
        monkeypatch.setattr(run_set, "describe_with_torch", describe)
        with pytest.raises(UserError) as refusal:
            list(run_set.make_run_set(order, Silent()))
        assert expected in str(refusal.value)


def test_a_trainer_may_stand_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit  # never imported here")
    monkeypatch.chdir(tmp_path)
    assert package_folder("outer.inner") == package
    with pytest.raises(ModuleNotFoundError):
        package_folder("outer")  # a folder, but no package


@pytest.fixture
def run(spec: RunSpec) -> Iterator[TimedRun]:
    alone = dataclasses.replace(spec, plan="dp=1")
    with served(alone) as server:
        yield join(server, alone)


def _on_the_clock(act: Callable[[TimedRun, Block], object]) -> Callable[[TimedRun], None]:
    def acted(run: TimedRun) -> None:
        with run.clock():
            for block in run.blocks():
                act(run, block)

    return acted


def _report_twice(run: TimedRun, _: object) -> None:
    data = run.evaluation_data()
    data.predict(slice(0, len(data)), np.zeros(len(data), dtype=np.int64))
    run.report()
    run.report()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda run: run.training_data(run.task.blocks()[0]), "training data belongs to"),
        (lambda run: run.evaluation_data(), "evaluation data is for"),
        (lambda run: run.report(), "report() follows an evaluation"),
        (lambda run: [run.training_data(block) for block in run.blocks()], "training data belongs"),
        (lambda run: [run.evaluation_data() for _ in run.blocks()], "evaluation data is for"),
        (
            _on_the_clock(lambda run, _: [run.evaluation_data(), run.report()]),
            "report() takes one prediction for every sample",
        ),
        (
            _on_the_clock(lambda run, block: run.training_data(dataclasses.replace(block))),
            "training data belongs to",
        ),
        (_on_the_clock(lambda run, _: run.report()), "report() follows an evaluation"),
        (
            _on_the_clock(lambda run, block: run.training_data(block)),
            "a block ended without report()",
        ),
        (_on_the_clock(_report_twice), "report() follows an evaluation, once"),
    ],
)
def test_a_trainer_keeps_its_turn(
    run: TimedRun, act: Callable[[TimedRun], object], message: str
) -> None:
    with run, pytest.raises(OutOfTurnError, match=re.escape(message)):
        act(run)


def test_a_trainer_in_turn_gets_a_log_whose_intervals_pair(spec: RunSpec) -> None:
    spec = dataclasses.replace(spec, plan="dp=1")
    covered: list[slice] = []
    with served(spec) as server, join(server, spec) as run:
        run.describe("note", {"a": 1})
        with run.clock():
            for block in run.blocks():
                batches = list(run.training_data(block).batches())
                assert len(batches) == len(run.task.steps(block))
                run.track({"bubble": 0.0})
                evaluation = run.evaluation_data()
                covered = [each for part in range(3) for each in evaluation.chunks(part, 3, 50)]
                assert sum(each.stop - each.start for each in covered) == len(evaluation)
                labels = truth(evaluation.inputs)
                if block.first < 3:
                    labels[::2] += 1
                evaluation.predict(slice(0, 2), labels[:2])
                evaluation.predict(slice(2, len(labels)), labels[2:])
                assert run.report() == (0.5 if block.first < 3 else 1)
    log = read_log(spec.log)
    assert log.chained
    keys = [entry.key for entry in log.entries]
    evaluated = ["eval_start", "eval_stop", "eval_accuracy"]
    block_keys = ["block_start", "tracked_stats", "tracked_stats", *evaluated, "block_stop"]
    assert keys == [
        "note",
        "init_stop",
        "run_start",
        *[*block_keys, "hybridperf_energy"] * 2,
        *block_keys,
        "run_stop",
        "hybridperf_energy",
        "hybridperf_noise",
    ]
    assert log.entries[-3].metadata["status"] == "success"
    (begun,) = read_pulse(spec.pulse_of(0), 1)
    assert begun == 1 + run.task.steps(block).stop + 3 * len(covered)


def truth(images: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the classes of evaluation images, which come without them and in any order."""
    held_out = load(find_task("resnet/laptop").data).evaluation
    known = {
        image.tobytes(): label
        for image, label in zip(held_out.inputs, held_out.labels, strict=True)
    }
    return np.array([known[image.tobytes()] for image in images])


def _order(spec: RunSpec, seed: int) -> tuple[list[list[int]], list[int]]:
    """Return the batches of the first block of a run with ``seed``, and its evaluation samples."""
    alone = dataclasses.replace(spec, seed=seed, plan="dp=1")
    with served(alone) as server, join(server, alone) as run, run.clock():
        block = next(iter(run.blocks()))
        batches = [batch.indices.tolist() for batch in run.training_data(block).batches()]
        return batches, run.evaluation_data().inputs.sum(axis=(1, 2)).tolist()


def test_every_seed_has_its_own_batches_and_every_run_its_own_order_of_evaluation(
    spec: RunSpec,
) -> None:
    one, again, other = _order(spec, 1), _order(spec, 1), _order(spec, 2)

    assert len({index for batch in one[0] for index in batch}) == sum(map(len, one[0]))
    assert one[0] == again[0] != other[0]
    assert one[1] != again[1]
    assert sorted(one[1]) == sorted(again[1])


def _sleeper(order: Path, code: str = "import time; time.sleep(60)") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {RUN_VARIABLE: str(order)}
    )


def test_processes_of_a_run_are_found_wherever_they_are_and_ended(tmp_path: Path) -> None:
    mine, other = tmp_path / "run.json", tmp_path / "run.json.other"
    deaf = tmp_path / "deaf"
    nested = "import subprocess, sys; sys.exit(subprocess.call(['setsid', 'sleep', '60']))"
    ignoring = (
        "import signal, time, pathlib; signal.signal(15, signal.SIG_IGN); "
        f"pathlib.Path({str(deaf)!r}).touch(); time.sleep(60)"
    )
    processes = [_sleeper(mine, nested), _sleeper(mine, ignoring), _sleeper(mine), _sleeper(other)]
    try:
        wait_until(lambda: deaf.exists() and len(processes_of(mine)) == 4)
        end_processes(mine)
        assert processes_of(mine) == []
        assert [process.pid for process in processes_of(other)] == [processes[-1].pid]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize("lives", [True, False])
def test_a_process_whose_parent_ended_before_it_could_ask_ends_too(*, lives: bool) -> None:
    code = "from hybridperf.run.child import die_with_parent as d; d(); print('on')"
    parent = os.getpid() if lives else 1
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {PARENT_VARIABLE: str(parent), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    expected = (0, b"on\n") if lives else (-signal.SIGKILL, b"")
    assert (done.returncode, done.stdout) == expected
