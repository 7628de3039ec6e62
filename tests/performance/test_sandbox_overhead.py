"""What the sandbox, the channel and the hand-over of samples cost in time to train.

Each pair is one run in the sandbox and one in open mode, with the same seed and so the same steps,
in turn. HYBRIDPERF_PAIRS says how many (default 5); an idle machine and some 20 pairs tell 1 %.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.run.channel import Evaluate, Predictions, Ready, connect
from hybridperf.run.rank_server import RankServer
from hybridperf.tasks.registry import find_task, task_path
from tests.performance.pairing import interval
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.run.spec import RunSpec

ROOT = Path(__file__).parents[2]
PAIRS = int(os.environ.get("HYBRIDPERF_PAIRS", "5"))


@pytest.mark.parametrize("task", ["resnet/laptop", "bert/laptop"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.timeout(7200)
def test_time_to_train_in_the_sandbox(
    task: str, ranks: int, tmp_path: Path, benchmark: Any
) -> None:
    ratios: list[float] = []

    def pair() -> None:
        seed = 1000 + len(ratios)
        modes = ("sandboxed", "open") if seed % 2 else ("open", "sandboxed")
        taken = {mode: _time_to_train_s(task, ranks, mode, seed, tmp_path) for mode in modes}
        ratios.append(taken["sandboxed"] / taken["open"])

    benchmark.pedantic(pair, rounds=PAIRS, iterations=1)

    median, least, most = interval(ratios)
    benchmark.extra_info["time over open mode's, median"] = round(median, 4)
    benchmark.extra_info["95 % interval"] = [round(least, 4), round(most, 4)]
    benchmark.extra_info["pairs"] = len(ratios)


def _time_to_train_s(task: str, ranks: int, mode: str, seed: int, folder: Path) -> float:
    out = folder / f"{mode}_{seed}"
    command = [sys.executable, "-m", "tests.run.driver", "run", task, "--plan", f"dp={ranks}"]
    done = subprocess.run(
        [*command, "--runs", "1", "--mode", mode, "--out", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "SEED": str(seed), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (path,) = out.rglob("result_0.txt")
    log = read_log(path)
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    assert start is not None
    assert stop is not None
    return (stop.time_ms - start.time_ms) / 1000


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    content = task_path("resnet/laptop").read_text()
    content = content.replace("epochs = 14\n", "epochs = 1000\n", 1)
    task = tmp_path / "task.toml"
    task.write_text(content)
    (tmp_path / "work").mkdir()
    return run_spec(tmp_path, task_path=str(task))


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


def test_latency_of_an_evaluation(spec: RunSpec, benchmark: Any) -> None:
    """The time from a rank's predictions to the harness's verdict, which training waits for."""
    samples = find_task("resnet/laptop").data.eval_samples
    task = spec.task()
    blocks = iter(task.blocks())
    taken_s: list[float] = []
    with (
        _serving(spec) as server,
        contextlib.closing(connect(server.address, 0)) as channel,
    ):
        channel.receive()
        channel.send(Ready())
        channel.receive()

        def evaluate() -> None:
            start_s = time.perf_counter()
            channel.send(Evaluate(len(task.steps(next(blocks)))))
            channel.send(Predictions(((0, samples),), bytes(8 * samples)))
            channel.receive()
            taken_s.append(time.perf_counter() - start_s)

        benchmark.pedantic(evaluate, rounds=200, iterations=1)

    benchmark.extra_info["ms, median"] = round(1000 * statistics.median(taken_s), 3)
    benchmark.extra_info["ms, 99 %"] = round(1000 * sorted(taken_s)[-3], 3)
