"""What a process of a run imports: nothing that takes seconds and is not used."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.writer import LogClock
from hybridperf.run.attempt import write_head
from hybridperf.run.channel import CHANNEL_VARIABLE
from hybridperf.run.spec import RUN_VARIABLE, RunSpec
from hybridperf.tasks.registry import find_task, task_path
from hybridperf_reference.engine import chain
from hybridperf_reference.engine.parallelize import forward_flops
from hybridperf_reference.models import chain_of
from tests.engine.odd_models import CLASSES, ODD, WIDTH
from tests.run.served import served

if TYPE_CHECKING:
    from pathlib import Path

UNUSED = (
    *("torch._dynamo", "torch.distributed.checkpoint.state_dict_saver", "sympy"),
    *("sklearn", "torchvision", "datasets", "pandas", "scipy"),
)
TRAINS = """
import os, sys
from hybridperf.plan import ParallelPlan
from hybridperf.run.access import EvaluationData, TrainingData
from hybridperf.tasks.data import load
from hybridperf.log.writer import LogClock
from hybridperf.run.attempt import write_head
from hybridperf.run.channel import CHANNEL_VARIABLE
from hybridperf.run.spec import RUN_VARIABLE, RunSpec
from hybridperf.tasks.registry import find_task, task_path
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of

task, plan = find_task(sys.argv[1]), ParallelPlan.parse(sys.argv[2])
with join_ranks(plan) as device:
    trainer = Trainer(chain_of(task, 1), task, plan, build_mesh(plan, device), 1)
    trainer.warm_up()
    samples = load(task.data).evaluation
    trainer.evaluate(EvaluationData(samples.inputs, lambda: None))
    trainer.weights()
    told = [name for name in sys.argv[3].split() if name in sys.modules]
    os.write(1, " ".join(["imported:", *told]).encode() + b"\\n")  # at once, beside other ranks
"""

SAVES = """
import os, sys
from hybridperf_reference import train
from hybridperf_reference.engine.trainer import Trainer

trained, saved, before = Trainer.train, Trainer.save, set()

def trains(trainer, data):
    before.update(sys.modules)  # on the clock
    trained(trainer, data)

def saves(trainer, folder):
    saved(trainer, folder)
    new = {name for name in sys.modules if name.startswith("torch.distributed")} - before
    print("imported:", *sorted(new), flush=True)
    os._exit(0)

Trainer.train, Trainer.save = trains, saves
train.main()
"""


@pytest.mark.parametrize("name", ["resnet/laptop", "vgg/laptop", "vit/laptop", "bert/laptop"])
def test_small_models_are_probed_on_the_host_with_the_same_result_as_on_meta(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain_ = chain_of(find_task(name), 1)
    flops, boundaries = forward_flops(chain_.probe()), chain_.probe().boundaries

    monkeypatch.setattr(chain, "MOST_CPU_PARAMETERS", 0)

    assert chain_.probe().inputs.device.type == "meta"
    assert forward_flops(chain_.probe()) == flops
    on_meta = [(sample.shape, sample.dtype) for sample in chain_.probe().boundaries]
    assert [(sample.shape, sample.dtype) for sample in boundaries] == on_meta
    assert all(sample.device.type == "meta" for sample in boundaries)


def test_a_large_model_that_reads_values_is_probed_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chain, "MOST_CPU_PARAMETERS", 0)
    probe = ODD["experts"].chain().probe()

    assert probe.inputs.device.type == "cpu"
    assert [len(sample) for sample in probe.boundaries[1:]] == [WIDTH, WIDTH, WIDTH, CLASSES]
    assert ODD["unused"].chain().probe().inputs.device.type == "meta"


@pytest.mark.parametrize(
    ("task", "plan"),
    [
        pytest.param("resnet/laptop", "dp=1", marks=pytest.mark.exhaustive),
        ("resnet/laptop", "dp=2"),
        ("vit/laptop", "microbatches=2"),
    ],
)
def test_a_rank_imports_only_what_its_plan_uses(task: str, plan: str, tmp_path: Path) -> None:
    script = tmp_path / "trains.py"
    script.write_text(TRAINS)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    done = subprocess.run(
        [
            sys.executable,
            *(torchrun if plan == "dp=2" else []),
            str(script),
            task,
            plan,
            " ".join(UNUSED),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("imported:")]
    assert told == ["imported:"] * (2 if plan == "dp=2" else 1)


def test_what_saves_checkpoints_is_imported_before_the_clock(tmp_path: Path) -> None:
    spec = RunSpec(
        folder=str(tmp_path),
        attempt=0,
        task_path=str(task_path("resnet/laptop")),
        trainer="hybridperf_reference",
        overrides={},
        plan="dp=1",
        seed=1,
        org="local",
        platform="here",
        division="open",
        clock=LogClock(),
        checkpoint_s=1e-6,  # after the first step
    )
    spec.write()
    write_head(spec)

    with served(spec) as server:
        where = {RUN_VARIABLE: str(spec.path), CHANNEL_VARIABLE: server.address}
        done = subprocess.run(
            [sys.executable, "-c", SAVES],
            env=os.environ | where | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["imported:"]
