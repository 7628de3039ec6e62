"""What the harness costs: training inside a supervised, logged run against the bare loop.

Every epoch of a run of ``resnet/laptop`` is done twice from the same weights, in turn as a block of
the run and by the bare loop, evaluation included, in one process with the same trainer.
What is compared is processor time, the supervisor's own included, with everything on one core:
whatever else the machine does then changes nothing. The ratio is in the extra information.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import EvaluationData, TrainingData
from hybridperf.run.attempt import write_head
from hybridperf.run.channel import connect
from hybridperf.run.timed_run import TimedRun
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import task_path
from hybridperf_reference.engine.mesh import build_mesh
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.run_spec import run_spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Block

EPOCHS, SEED = 60, 1
SUPERVISOR = """
import subprocess
import sys
from pathlib import Path
from hybridperf.run.rank_server import RankServer
from hybridperf.run.ending import StopRequest
from hybridperf.run.spec import RunSpec
from hybridperf.run.supervise import supervise
class Nobody:
    def progress(self, progress): pass
spec = RunSpec.read(Path(sys.argv[1]))
server = RankServer(spec)
print(server.address, flush=True)
# In the place of a trainer: a process that does nothing and ends with this one.
trainer = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
supervise(trainer, server, spec, StopRequest(), Nobody())
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
    plan, spec = ParallelPlan(), _spec(tmp_path)
    task = spec.task()
    mesh = build_mesh(plan, torch.device("cpu"))
    trainer = Trainer(chain_of(task, SEED), task, plan, mesh, SEED)
    trainer.warm_up()
    splits = load(task.data)

    def bare(block: Block) -> None:
        trainer.train(TrainingData(splits.train, task, SEED, block, lambda: None))
        trainer.statistics()
        data = EvaluationData(splits.evaluation.inputs, lambda: None)
        trainer.evaluate(data)
        for chunk, classes in data.predicted:
            (classes == splits.evaluation.labels[chunk]).mean()

    def inside(run: TimedRun, block: Block) -> None:
        trainer.train(run.training_data(block))
        run.track(trainer.statistics())
        trainer.evaluate(run.evaluation_data())
        run.report()

    def whole() -> None:
        with (
            _supervisor(spec) as (supervisor, address),
            TimedRun(connect(address, 0), 0, tmp_path) as run,
            run.clock(),
        ):
            before_s = sum(supervisor.cpu_times()[:2])
            for block in run.blocks():
                weights = {name: value.clone() for name, value in trainer.weights().items()}
                halves = {True: partial(bare, block), False: partial(inside, run, block)}
                seconds = {}
                for is_bare in (True, False) if block.first % 2 else (False, True):
                    trainer._stage.load_state_dict(weights)
                    trainer._steps = run.task.steps(block)[0]  # batches before it are skipped
                    seconds[is_bare] = _processor_seconds(halves[is_bare])
                pairs.append((seconds[False], seconds[True]))
            # It watches both halves alike; its share belongs to one.
            watching_s.append((sum(supervisor.cpu_times()[:2]) - before_s) / 2)

    pairs: list[tuple[float, float]] = []
    watching_s: list[float] = []
    benchmark.pedantic(whole, rounds=1, iterations=1)

    bare_s = sum(bare for _, bare in pairs)
    watching = watching_s[0] / bare_s
    ratios = [inside / bare + watching for inside, bare in pairs]
    benchmark.extra_info |= {
        "processor time over the bare loop's, median": round(statistics.median(ratios), 4),
        "quartiles": [round(each, 4) for each in statistics.quantiles(ratios, n=4)],
        "of that the supervisor": round(watching, 4),
        "pairs": len(pairs),
    }


@contextlib.contextmanager
def _supervisor(spec: RunSpec) -> Iterator[tuple[psutil.Process, str]]:
    """Serve the run of ``spec`` from another process, as the harness does; say where."""
    command = [sys.executable, "-c", SUPERVISOR, str(spec.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        address = supervisor.stdout.readline().decode().strip()
        yield psutil.Process(supervisor.pid), address
        supervisor.terminate()


def _processor_seconds(work: Any) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _spec(folder: Path) -> RunSpec:
    """RunRequest a run in ``folder`` that never stops early."""
    content = task_path("resnet/laptop").read_text()
    content = content.replace("epochs = 14\n", f"epochs = {EPOCHS}\n", 1)
    content = content.replace("target = 0.98\n", "target = 1.0\n", 1)
    task = folder / "task.toml"
    task.write_text(content)
    spec = run_spec(folder, task_path=str(task), seed=SEED)
    spec.write()
    spec.work.mkdir()
    write_head(spec)
    return spec
