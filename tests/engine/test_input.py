from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest
import torch

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import EvaluationData, TrainingData
from hybridperf.tasks.data import Samples
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.input import Input, ReadingRole, reading_role
from hybridperf_reference.engine.mesh import Mesh, coordinates
from hybridperf_reference.engine.timing import StepTimer
from tests.engine.input_worlds import Readers, begin_to_read, read_until_the_end, run_plans
from tests.engine.ranks import run_ranks, start_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

TASK = find_task("resnet/laptop")
CPU = torch.device("cpu")


@dataclasses.dataclass
class Numbers:
    """An objective whose inputs say which sample was read, in which epoch, by which process."""

    reads_ahead: bool

    def read(
        self, samples: Samples, indices: NDArray[np.int64], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        read = torch.from_numpy(samples.inputs[indices] + 1000 * epoch + seed)
        return read, torch.full_like(read, os.getpid())

    def prepare(self, *stored: Tensor) -> Tensor:
        return torch.stack(stored)

    def targets(
        self, samples: Samples, indices: NDArray[np.int64], seed: int, epoch: int
    ) -> Tensor:
        return torch.from_numpy(samples.labels[indices] + 1000 * epoch + seed)

    def evaluation(self, stored: NDArray[np.int64]) -> Tensor:
        read = torch.from_numpy(stored)
        return torch.stack([read, torch.full_like(read, os.getpid())])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def count(self, targets: Tensor) -> int:
        raise NotImplementedError

    def predictions(self, outputs: Tensor) -> Tensor:
        raise NotImplementedError


SAMPLES = Samples(np.arange(20), np.arange(20))


def _data(block: Block = Block(2, 2), seed: int = 5) -> TrainingData:  # noqa: B008 - frozen
    task = dataclasses.replace(
        TASK,
        data=dataclasses.replace(TASK.data, train_samples=len(SAMPLES)),
        training=dataclasses.replace(TASK.training, global_batch_size=6),
    )
    return TrainingData(SAMPLES, task, seed, block, lambda: None)


def _read(
    own: slice, *, ahead: bool = False, first_step: int = 0, timer: StepTimer | None = None
) -> list[tuple[int, list[int]]]:
    source = Input(Numbers(ahead), CPU, ReadingRole())
    read = source.train(_data(), own, timer or StepTimer(CPU), first_step)
    numbers = []
    for batch, inputs, targets in read:
        assert inputs is not None
        assert targets is not None
        assert torch.equal(inputs[0], targets)
        numbers.append((batch.step, targets.tolist()))
    source.close()
    return numbers


def test_replicas_together_read_each_sample_once_an_epoch() -> None:
    parts = [_read(slice(first, first + 2)) for first in (0, 2, 4)]

    assert [[step for step, _ in part] for part in parts] == [[3, 4, 5, 6, 7, 8, 9]] * 3
    epochs, seen = zip(
        *(divmod(number - 5, 1000) for part in parts for _, numbers in part for number in numbers),
        strict=True,
    )
    for epoch, first, left in ((1, 0, 18), (2, 0, 0), (3, 0, 0)):
        own = [number for each, number in zip(epochs, seen, strict=True) if each == epoch]
        assert len(own) == len(set(own)) == 20 - left + first  # the block begins with what 1 left
    assert set(epochs) == {1, 2, 3}


def test_what_is_read_ahead_is_the_same_and_comes_in_the_same_order() -> None:
    torch.manual_seed(1)
    drawn = torch.rand(1)
    torch.manual_seed(1)

    assert _read(slice(0, 6), ahead=True) == _read(slice(0, 6))
    assert torch.equal(torch.rand(1), drawn), "the process's own numbers are left alone"


def test_steps_before_a_checkpoint_are_not_read() -> None:
    assert _read(slice(0, 6), first_step=5) == _read(slice(0, 6))[2:]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_reading_takes_is_told_wherever_it_is_done(ahead: bool) -> None:
    timer = StepTimer(torch.device("cpu"))

    _read(slice(0, 6), ahead=ahead, timer=timer)

    seconds = timer.collect()
    assert seconds["read"] > 0
    assert seconds["prepare"] > 0
    assert set(timer.collect().values()) == {0}


def test_an_accelerator_copies_pinned_samples_on_a_stream_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []

    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def __enter__(self) -> None:
            done.append(f"to {self.name}")

        def __exit__(self, *_: object) -> None:
            done.append("back")

        def wait_stream(self, other: Stream) -> None:
            done.append(f"{self.name} wait for {other.name}")

    def pin(tensor: Tensor) -> Tensor:
        done.append("pin")
        return tensor

    def record(tensor: Tensor, stream: Stream) -> None:
        done.append(f"{tensor.device} is read by {stream.name}")

    copy = torch.Tensor.to

    def move(tensor: Tensor, device: torch.device, *, non_blocking: bool = False) -> Tensor:
        done.append("copy and go on" if non_blocking else "copy")
        return copy(tensor, device)

    monkeypatch.setattr(torch, "Stream", lambda _: Stream("copies"))
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _: Stream("passes"))
    for name, replacement in {"pin_memory": pin, "record_stream": record, "to": move}.items():
        monkeypatch.setattr(torch.Tensor, name, replacement)
    source = Input(Numbers(reads_ahead=False), torch.device("meta"), ReadingRole())

    ((_, inputs),) = source.evaluate(SAMPLES.inputs, iter([slice(0, 8)]))

    copying = ["to copies", "pin", "copy and go on", "back"]
    assert done == [*copying, "passes wait for copies", "meta is read by passes"]
    assert inputs is not None
    assert inputs.device.type == "meta"


@pytest.fixture
def source() -> Iterator[Input]:
    source = Input(Numbers(reads_ahead=True), CPU, ReadingRole())
    yield source
    source.close()


def _block(source: Input, number: int) -> tuple[set[int], set[int]]:
    """Train a block and evaluate; return the processes that read for each."""
    data, evaluation = _data(Block(number, 1)), EvaluationData(SAMPLES.inputs, lambda: None)
    training = source.train(data, slice(0, 6), StepTimer(CPU))
    trained = {pid for _, inputs, _ in training if inputs is not None for pid in inputs[1].tolist()}
    evaluated: set[int] = set()
    seen = []
    for chunk, inputs in source.evaluate(evaluation.inputs, evaluation.chunks(0, 1, 3)):
        assert inputs is not None
        assert inputs[0].tolist() == list(range(20))[chunk]
        seen += inputs[0].tolist()
        evaluated.update(inputs[1].tolist())
    assert seen == list(range(20))
    return trained, evaluated


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_the_same_workers_read_in_every_block_and_every_evaluation(source: Input) -> None:
    before = _children()

    first = _block(source, 1)
    started = _children() - before
    later = [_block(source, number) for number in (2, 3)]

    every = set.union(*(pids for each in (first, *later) for pids in each))
    assert every <= started
    assert os.getpid() not in every
    assert _children() - before == started
    assert not first[0] & first[1], "those of training hold its samples, the others the held-out"
    source.close()
    assert _children() <= before


def test_other_samples_and_another_seed_are_not_mistaken_for_the_ones_before(source: Input) -> None:
    other = dataclasses.replace(_data(), samples=Samples(SAMPLES.inputs + 100, SAMPLES.labels))
    for data, difference in ((_data(), 0), (_data(seed=7), 0), (other, 100)):
        for batch, inputs, _ in source.train(data, slice(0, 6), StepTimer(CPU)):
            assert inputs is not None
            expected = batch.indices + 1000 * batch.epochs + data.seed + difference
            assert inputs[0].tolist() == expected.tolist()


def test_what_is_in_memory_is_read_without_workers() -> None:
    before = _children()
    source = Input(Numbers(reads_ahead=False), CPU, ReadingRole())

    assert _block(source, 1) == ({os.getpid()}, {os.getpid()})
    assert _children() <= before


def test_a_block_that_was_left_early_does_not_disturb_the_next(source: Input) -> None:
    next(source.train(_data(Block(1, 3)), slice(0, 6), StepTimer(CPU)))

    read = source.train(_data(), slice(0, 6), StepTimer(CPU))

    targets = [each.tolist() for _, _, each in read if each is not None]
    assert targets == [numbers for _, numbers in _read(slice(0, 6))]


def test_workers_end_with_close_although_an_exception_remembers_the_iterator(
    source: Input,
) -> None:
    before = _children()
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012 - raised while reading
        for _ in source.train(_data(), slice(0, 6), StepTimer(CPU)):
            1 / 0  # noqa: B018 - as a training step that fails

    assert _children() - before
    source.close()
    assert _children() <= before
    assert caught.traceback


@pytest.mark.parametrize("end", ["returns", "raises", "SIGINT", "SIGTERM", "SIGKILL"])
def test_no_worker_outlives_its_rank(end: str, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    world = start_ranks(1, read_until_the_end, tmp_path, end, output=output)
    (rank,) = world.ranks
    pids = tmp_path / "pids"
    deadline_s = time.monotonic() + 120
    while not pids.exists() and rank.is_alive() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert pids.exists(), output.read_text()
    workers = [psutil.Process(int(pid)) for pid in pids.read_text().split()]
    assert len(workers) >= 2

    (tmp_path / "go").touch()
    if end.startswith("SIG"):
        assert rank.pid is not None
        os.kill(rank.pid, signal.Signals[end])
    rank.join(60)

    assert rank.exitcode is not None, output.read_text()
    assert (rank.exitcode == 0) == (end == "returns"), output.read_text()
    assert not _still_alive(workers)


def test_no_worker_outlives_a_rank_that_is_killed_before_it_has_started(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    (rank,) = start_ranks(1, begin_to_read, tmp_path, output=output).ranks
    deadline_s = time.monotonic() + 120
    while not (forked := [*tmp_path.glob("forked_*")]) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert forked, output.read_text()

    rank.kill()
    rank.join(60)
    workers = [psutil.Process(int(path.name[7:])) for path in tmp_path.glob("forked_*")]
    (tmp_path / "go").touch()

    assert not _still_alive(workers)


def _still_alive(workers: Sequence[psutil.Process]) -> list[str]:
    """Wait until ``workers`` have ended; return, and end, those that do not."""
    deadline_s = time.monotonic() + 120
    while (alive := [*filter(_runs, workers)]) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    found = [str(worker) for worker in alive]
    for worker in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    return found


def _runs(process: psutil.Process) -> bool:
    """Tell whether ``process`` has not ended; who adopts an orphan may leave it as a zombie."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


FOUR = ("dp=2,tp=2", "pp=2,tp=2,schedule=1f1b,microbatches=2", "pp=4,schedule=1f1b,microbatches=4")
COUNTS = {  # of samples: inputs trained on, targets, inputs evaluated, each by rank
    FOUR[0]: [(36, 36, 33), (0, 0, 0), (36, 36, 34), (0, 0, 0)],
    FOUR[1]: [(72, 0, 67), (0, 0, 0), (0, 72, 0), (0, 0, 0)],
    FOUR[2]: [(72, 0, 67), (0, 0, 0), (0, 0, 0), (0, 72, 0)],
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds")
    run_ranks(4, run_plans, folder, FOUR, output=folder / "output.txt")
    return folder


@pytest.mark.parametrize("plan", FOUR)
def test_each_sample_is_read_once_by_a_rank_that_needs_it(plan: str, worlds: Path) -> None:
    found = [Readers.counts(worlds / f"{plan}_{rank}") for rank in range(4)]

    assert found == COUNTS[plan]


@pytest.mark.parametrize("plan", FOUR)
def test_what_a_tp_group_shares_is_what_each_of_its_ranks_would_read(
    plan: str, worlds: Path
) -> None:
    for rank in range(4):
        apart, shared = (
            torch.load(worlds / f"{plan}_{rank}_{kind}.pt") for kind in ("memory", "ahead")
        )
        assert apart["quality"] == shared["quality"]
        assert apart["statistics"]["loss"] == shared["statistics"]["loss"]
        for name, weight in apart["weights"].items():
            assert torch.equal(weight, shared["weights"][name])


@pytest.mark.parametrize(
    ("plan", "readers"),
    [
        ("dp=8", 8),
        ("dp=4,tp=2", 4),
        ("tp=8", 1),
        ("dp=2,pp=4,schedule=1f1b,microbatches=4", 2),
        ("dp=2,pp=2,tp=2,schedule=1f1b,microbatches=2", 2),
    ],
)
def test_cores_are_divided_among_the_ranks_that_read(
    plan: str, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = ParallelPlan.parse(plan)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(24)))
    at = coordinates(parsed, 0)

    role = reading_role(parsed, Mesh(CPU, None, at["dp"], at["pp"], at["tp"]))

    assert role.inputs
    assert role.workers == min(16, 24 // readers)
