"""What the sandbox, and the harness's keeping of samples and labels, cost in time to train.

Two real runs of one seed live side by side, one in the sandbox and one in open mode, each with the
harness's own launcher, server and trainer. They take turns block by block (an epoch and its
evaluation), ABBA; the one whose turn it is not waits for its verdict. A block is timed by the
harness, from its start to the count of its predictions, and by the processor time of all threads
of the run. Ranks have one thread. HYBRIDPERF_PAIRS says how many pairs of blocks (default 60).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.run.attempt import write_head
from hybridperf.run.channel import Evaluate, Predictions, Ready, Start, Track, connect
from hybridperf.run.handover import shared
from hybridperf.run.launcher import launch
from hybridperf.run.processes import end_tree
from hybridperf.run.pulse import Pulse
from hybridperf.run.rank_server import RankServer
from hybridperf.run.sandbox import mode_of, sandbox_facts
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import find_task, task_path
from tests.performance.pairing import interval
from tests.run_spec import run_spec

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from hybridperf.run.spec import Mode, RunSpec
    from hybridperf.tasks.task import Task

TASKS: Final = ("resnet/laptop", "bert/laptop")
PAIRS: Final = int(os.environ.get("HYBRIDPERF_PAIRS", "60"))
SEED: Final = 1000
LONGEST_S: Final = 300  #: ends a run that hangs


class HeldServer(RankServer):
    """A server that gives the verdict, and so begins the next block, only when it is told to."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(spec)
        self.counted_s: float | None = None  #: when the predictions of the block were counted

    def _decide(self) -> None:
        self.counted_s = time.perf_counter()

    def give_verdict(self) -> None:
        """Let the ranks go on."""
        self.counted_s = None
        super()._decide()


@dataclass
class Run:
    """One of the two runs."""

    server: HeldServer
    process: subprocess.Popen[bytes]

    def first_block(self) -> None:
        """Wait until the ranks have started and ended their first block, which is not timed."""
        self._await_count()

    def next_block(self) -> tuple[float, float]:
        """Carry out a block; return its seconds by the wall and of the processor."""
        before_s, start_s = _processor_s(self.process.pid), time.perf_counter()
        self.server.give_verdict()
        wall_s = self._await_count() - start_s
        return wall_s, _processor_s(self.process.pid) - before_s

    def _await_count(self) -> float:
        deadline_s = time.monotonic() + LONGEST_S
        while self.server.counted_s is None:
            self.server.serve(0.05)
            assert not self.server.problem, self.server.problem
            assert self.process.poll() is None, "the ranks have ended"
            assert time.monotonic() < deadline_s
        return self.server.counted_s


def _processor_s(root: int) -> float:
    """Return the processor time of all threads of a process and its descendants, in seconds."""
    total_ns = 0
    parent = psutil.Process(root)
    for process in (parent, *parent.children(recursive=True)):
        for thread in Path(f"/proc/{process.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                total_ns += int((thread / "schedstat").read_text().split()[0])
    return total_ns / 1e9


@contextlib.contextmanager
def _running(spec: RunSpec) -> Iterator[Run]:
    spec.write()
    spec.work.mkdir()
    write_head(spec)
    with contextlib.closing(HeldServer(spec)) as server:
        process = launch(spec, server.address, server.scratch)
        try:
            run = Run(server, process)
            run.first_block()
            yield run
        finally:
            end_tree(process, spec.path)


def _spec(task: str, ranks: int, mode: Mode, folder: Path) -> RunSpec:
    """Return a run of ``task`` that goes on for as many epochs as there are pairs, and more."""
    content = task_path(task).read_text()
    before = find_task(task)
    for key, old, new in (
        ("epochs", before.limits.epochs, PAIRS + 2),
        ("target", before.quality.target, 1.0),
        ("run_s", before.limits.run_s, 36_000),
    ):
        line = f"\n{key} = {old:g}\n"
        assert content.count(line) == 1, key
        content = content.replace(line, f"\n{key} = {new:g}\n")
    folder = folder / mode / "attempt"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(content)
    facts = sandbox_facts(mode, nodes=1)
    assert mode_of(before, mode, nodes=1) == mode, facts
    return run_spec(
        folder,
        task_path=str(folder / "task.toml"),
        plan=str(ParallelPlan(dp=ranks)),
        seed=SEED,
        mode=mode,
        sandbox=facts,
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.timeout(7200)
def test_blocks_in_the_sandbox(
    task: str, ranks: int, tmp_path: Path, benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    wall, processor = list[float](), list[float]()

    def pair() -> None:
        order = (inside, outside) if len(wall) % 2 else (outside, inside)
        taken = {id(run): run.next_block() for run in order}
        sandboxed, other = taken[id(inside)], taken[id(outside)]
        wall.append(sandboxed[0] / other[0])
        processor.append(sandboxed[1] / other[1])

    with (
        _running(_spec(task, ranks, "sandboxed", tmp_path)) as inside,
        _running(_spec(task, ranks, "open", tmp_path)) as outside,
    ):
        benchmark.pedantic(pair, rounds=PAIRS, iterations=1)

    for name, ratios in (("wall", wall), ("processor time", processor)):
        median, least, most = interval(ratios)
        benchmark.extra_info[f"sandboxed over open by {name}: median, 95 % interval"] = [
            round(each, 4) for each in (median, least, most)
        ]
    benchmark.extra_info["pairs of blocks"] = len(wall)


@contextlib.contextmanager
def _serving(spec: RunSpec) -> Iterator[RankServer]:
    ended = threading.Event()
    with contextlib.closing(RankServer(spec)) as server:

        def serve() -> None:
            while not ended.is_set():
                server.serve(0.05)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server
        ended.set()
        thread.join()


def _timed_s(work: Callable[[], object], repetitions: int = 1) -> float:
    """Return the median duration of ``work`` in seconds."""
    taken_s = []
    for _ in range(repetitions):
        start_s = time.perf_counter()
        work()
        taken_s.append(time.perf_counter() - start_s)
    return statistics.median(taken_s)


@pytest.mark.parametrize("name", TASKS)
def test_parts_of_what_the_harness_does_on_the_clock(
    name: str, tmp_path: Path, benchmark: Any
) -> None:
    """Each part by itself, and their sum in a run of as many epochs as the task's reference."""
    task = find_task(name)
    monitored = _Parts()

    def run() -> None:
        folder = tmp_path / str(len(monitored.handover_s))
        folder.mkdir()
        monitored.follow(task, _spec(name, 1, "open", folder))

    benchmark.pedantic(run, rounds=20, iterations=1)

    assert task.reference is not None
    epochs = statistics.mean(task.reference.samples_to_target) / task.data.train_samples
    steps = epochs * task.steps_per_epoch
    parts_ms = {
        "handing the samples over": 1000 * statistics.median(monitored.handover_s),
        "an evaluation, predictions to verdict": 1000 * statistics.median(monitored.evaluation_s),
        "tracking statistics": 1000 * statistics.median(monitored.track_s),
        "a sign of progress": 1000 * statistics.median(monitored.beat_s),
    }
    times = (1, epochs, epochs, steps + epochs * task.data.eval_samples / 64)
    whole_ms = sum(part * count for part, count in zip(parts_ms.values(), times, strict=True))
    benchmark.extra_info |= {f"{part}, ms": round(ms, 4) for part, ms in parts_ms.items()}
    benchmark.extra_info["a trainer that reads them itself, ms"] = round(
        1000 * _timed_s(lambda: load(task.data), 20), 4
    )
    benchmark.extra_info[f"all of them in a run of {epochs:.1f} epochs, ms"] = round(whole_ms, 2)


class _Parts:
    """Durations in seconds, measured from a rank's side with a server in another thread."""

    def __init__(self) -> None:
        self.handover_s, self.evaluation_s = list[float](), list[float]()
        self.track_s, self.beat_s = list[float](), list[float]()

    def follow(self, task: Task, spec: RunSpec) -> None:
        """Do what a rank does, but for the training."""
        spec.work.mkdir()
        samples = task.data.eval_samples
        width = load(task.data).evaluation.labels[0].size
        statistics_of_block = {"loss": 0.5, "bubble": 0.0, "stages": [{"compute_s": 1.0}] * 4}
        with (
            _serving(spec) as server,
            contextlib.closing(connect(server.address, 0)) as channel,
        ):
            channel.receive()
            self.handover_s.append(_timed_s(lambda: self._take_samples(channel)))
            for block in spec.task().blocks()[:10]:
                self.track_s.append(_timed_s(lambda: channel.send(Track(statistics_of_block))))
                steps = len(spec.task().steps(block))

                def evaluate(steps: int = steps) -> None:
                    channel.send(Evaluate(steps))
                    channel.send(Predictions(((0, samples),), bytes(8 * width * samples)))
                    channel.receive()

                self.evaluation_s.append(_timed_s(evaluate))
        pulse = Pulse(spec.work / "pulse", 0)
        self.beat_s.append(_timed_s(pulse.beat, 1000))
        pulse.close()

    @staticmethod
    def _take_samples(channel: Any) -> None:
        channel.send(Ready())
        start = channel.receive()
        assert isinstance(start, Start)
        (memory,) = channel.descriptors
        for place in (start.train_inputs, start.train_labels, start.evaluation_inputs):
            assert place is not None
            shared(place, memory).sum()  # reads every page of it
        os.close(memory)
