"""What the sandbox, and the harness's keeping of samples and labels, cost in time to train.

Three parts, since two runs of one seed differ by more than what is asked about: training by a
thread in Landlock beside threads of the same process that are not, in turns; system calls in the
whole sandbox; and what the harness does on the clock. HYBRIDPERF_ROUNDS_OF_BLOCKS says how many
blocks each thread trains (default 30).
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from hybridperf.run.access import map_array, map_memory
from hybridperf.run.channel import Evaluate, Predictions, Ready, Start, Track, connect
from hybridperf.run.processes import Pulse
from hybridperf.run.rank_server import RankServer
from hybridperf.run.sandbox import policy_of, sandbox_facts
from hybridperf.run.timed_run import seal_weights
from hybridperf.system.landlock import why_no_landlock
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import find_task, task_path
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.models import chain_of
from tests.performance.launch import run_ranks
from tests.performance.pairing import interval
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Task

ROOT: Final = Path(__file__).parents[2]
TASKS: Final = ("resnet/laptop", "bert/laptop")
BLOCKS: Final = os.environ.get("HYBRIDPERF_ROUNDS_OF_BLOCKS", "30")
PROCESSES: Final = 20  #: in the sandbox and outside, of system calls

needs_landlock = pytest.mark.skipif(bool(why_no_landlock()), reason=why_no_landlock() or "none")


@needs_landlock
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.timeout(7200)
def test_training_in_landlock(task: str, ranks: int, tmp_path: Path, benchmark: Any) -> None:
    found = list[dict[str, Any]]()

    def whole() -> None:
        module = "tests.performance.landlock_worlds"
        # Threads have memory from places of their own otherwise, and one's may be better.
        variables = {"MALLOC_ARENA_MAX": "1", "HYBRIDPERF_ROUNDS_OF_BLOCKS": BLOCKS}
        found.extend(run_ranks(module, tmp_path, ranks, task, **variables))

    benchmark.pedantic(whole, rounds=1, iterations=1)

    wall, processor = [found[0]["wall_s"]], [rank["processor_s"] for rank in found]
    for side in ("inside", "control"):
        benchmark.extra_info |= {
            f"{side} over outside by wall: median, 95 % interval": _ratio(wall, side),
            f"{side} over outside by processor time": _ratio(processor, side),
        }


def _ratio(ranks: list[dict[str, list[float]]], side: str) -> list[float]:
    """Return the seconds of a thread over those of the one outside, all ranks together."""
    ones, others = (
        [sum(each) for each in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in (side, "outside")
    )
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return [round(each, 4) for each in interval(ratios)]


@needs_landlock
def test_system_calls_in_the_sandbox(tmp_path: Path, benchmark: Any) -> None:
    spec = run_spec(tmp_path, mode="sandboxed", sandbox=sandbox_facts("sandboxed", nodes=1))
    policy = policy_of(spec, writable=(tmp_path,), readable=(ROOT,), ranks=2).write(tmp_path)
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}

    def pair() -> None:
        first = bool(len(found[True]) % 2)
        for inside in (first, not first):
            command = [sys.executable, "-m", "tests.performance.system_calls", str(tmp_path)]
            done = subprocess.run(
                [*command, policy] if inside else command,
                cwd=ROOT, capture_output=True, text=True, check=True,
            )  # fmt: skip
            found[inside].append(json.loads(done.stdout))

    benchmark.pedantic(pair, rounds=PROCESSES, iterations=1)

    for call in found[True][0]:
        inside, outside = ([each[call] for each in found[side]] for side in (True, False))
        differences = [one - other for one, other in zip(inside, outside, strict=True)]
        benchmark.extra_info[f"{call}: us outside, more inside, 95 % interval"] = [
            round(each, 3) for each in (statistics.median(outside), *interval(differences))
        ]


def _spec(task: Task, folder: Path) -> RunSpec:
    """Return a run of ``task`` in ``folder`` that does not stop at the target."""
    content = task_path(task.name).read_text()
    before, after = f"\ntarget = {task.quality.target:g}\n", "\ntarget = 1.0\n"
    assert content.count(before) == 1
    (folder / "task.toml").write_text(content.replace(before, after))
    return run_spec(folder, task_path=str(folder / "task.toml"))


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
        monitored.follow(task, _spec(task, folder))

    benchmark.pedantic(run, rounds=20, iterations=1)

    assert task.reference is not None
    epochs = statistics.mean(task.reference.samples_to_target) / task.data.train_samples
    steps = epochs * task.steps_per_epoch
    parts_ms = {
        "handing the samples over": 1000 * statistics.median(monitored.handover_s),
        "an evaluation, predictions to verdict": 1000 * statistics.median(monitored.evaluation_s),
        "handing the weights over": 1000 * statistics.median(monitored.weights_s),
        "tracking statistics": 1000 * statistics.median(monitored.track_s),
        "a sign of progress": 1000 * statistics.median(monitored.beat_s),
    }
    times = (1, epochs, epochs, epochs, steps + epochs * task.data.eval_samples / 64)
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
        self.weights_s = list[float]()
        self.track_s, self.beat_s = list[float](), list[float]()

    def follow(self, task: Task, spec: RunSpec) -> None:
        """Do what a rank does, but for the training."""
        spec.work.mkdir()
        samples = task.data.eval_samples
        weights = Stage(chain_of(task, 0, None).units).state_dict()
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

                channel.send(Evaluate(steps))
                times_s = [time.perf_counter()]
                memory, size = seal_weights(weights)
                times_s.append(time.perf_counter())
                predictions = Predictions(((0, samples),), bytes(8 * width * samples), size)
                channel.send(predictions, memory)
                channel.receive()
                times_s.append(time.perf_counter())
                os.close(memory)
                self.weights_s.append(times_s[1] - times_s[0])
                self.evaluation_s.append(times_s[2] - times_s[1])
        pulse = Pulse(spec.work / "pulse", 0)
        self.beat_s.append(_timed_s(pulse.beat, 1000))
        pulse.close()

    @staticmethod
    def _take_samples(channel: Any) -> None:
        channel.send(Ready())
        start = channel.receive()
        assert isinstance(start, Start)
        descriptor = channel.take_descriptor()
        memory = map_memory(descriptor)
        for place in (start.train_inputs, start.train_labels, start.evaluation_inputs):
            assert place is not None
            map_array(place, memory).sum()  # reads every page of it
        os.close(descriptor)
