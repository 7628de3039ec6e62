"""What the harness costs: training inside a supervised, logged run against the bare loop.

Both do the same two epochs of ``resnet/laptop`` with the same trainer, in turn, in one process.
What is compared is processor time, the supervisor's own included, with everything on one core:
whatever else the machine does then changes nothing. The ratio is in the extra information.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from reference_impls.engine.mesh import build_mesh
from reference_impls.engine.trainer import Trainer
from reference_impls.models import chain_of
from suite.logs.clock import LogClock
from suite.plan import ParallelPlan
from suite.runs.access import EvaluationData, TrainingData
from suite.runs.launch import write_head
from suite.runs.spec import RunSpec
from suite.runs.timed_run import TimedRun
from suite.tasks.data import load
from suite.tasks.registry import task_path
from suite.tasks.task import Block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPOCHS, PAIRS, SEED = 2, 10, 1
SUPERVISOR = """
import sys
from pathlib import Path
from suite.runs.spec import RunSpec
from suite.runs.supervise import StopRequest, supervise
class Nobody:
    def progress(self, progress): pass
class Trainer:
    def poll(self): return None
print("watching", flush=True)
supervise(Trainer(), RunSpec.read(Path(sys.argv[1])), StopRequest(), Nobody())
"""


@pytest.fixture
def one_core() -> Iterator[None]:
    """Run on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_harness_overhead(one_core: None, benchmark: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    specs = iter([_spec(tmp_path / str(number)) for number in range(PAIRS + 1)])
    plan = ParallelPlan()
    task = _spec(tmp_path / "facts").task()
    mesh = build_mesh(plan, torch.device("cpu"))
    trainer = Trainer(chain_of(task, SEED), task, plan, mesh, SEED)
    trainer.warm_up()

    def bare() -> None:
        splits = load(task.data)
        for epoch in range(1, EPOCHS + 1):
            block = Block(epoch, 1)
            trainer.train(TrainingData(splits.train, task, SEED, block, lambda: None))
            trainer.statistics()
            trainer.evaluate(EvaluationData(splits.evaluation, lambda: None))

    def supervised(run: TimedRun) -> None:
        with run.clock():
            for block in run.blocks():
                trainer.train(run.training_data(block))
                run.track(trainer.statistics())
                run.report(trainer.evaluate(run.evaluation_data()))

    def pair() -> float:
        spec = next(specs)
        bare_s = _processor_seconds(bare)
        command = [sys.executable, "-c", SUPERVISOR, str(spec.path)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE) as supervisor,
            TimedRun(spec, 0) as run,
        ):
            assert supervisor.stdout is not None
            supervisor.stdout.readline()
            watcher = psutil.Process(supervisor.pid)
            started_s = sum(watcher.cpu_times()[:2])
            supervised_s = _processor_seconds(lambda: supervised(run))
            supervised_s += sum(watcher.cpu_times()[:2]) - started_s
            supervisor.terminate()
        ratios.append(supervised_s / bare_s)
        return supervised_s

    ratios: list[float] = []
    pair()  # the first pays for caches
    ratios.clear()
    benchmark.pedantic(pair, rounds=PAIRS, iterations=1)

    benchmark.extra_info["processor time over the bare loop's, median"] = round(
        statistics.median(ratios), 5
    )
    benchmark.extra_info["least and most"] = [round(min(ratios), 5), round(max(ratios), 5)]


def _processor_seconds(work: Any) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _spec(folder: Path) -> RunSpec:
    """Order a run of two epochs in ``folder``."""
    folder.mkdir()
    content = (
        task_path("resnet/laptop").read_text().replace("epochs = 14\n", f"epochs = {EPOCHS}\n", 1)
    )
    task = folder / "task.toml"
    task.write_text(content)
    spec = RunSpec(
        folder=str(folder),
        attempt=0,
        task_path=str(task),
        trainer="reference_impls",
        overrides={},
        plan="dp=1",
        seed=SEED,
        org="local",
        platform="here",
        division="closed",
        clock=LogClock(),
    )
    spec.write()
    write_head(spec)
    return spec
