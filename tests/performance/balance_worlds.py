"""What a rank of the measurement of balance does: ``-m tests.performance.balance_worlds N FOLDER``.

Trainers with and without ``balance=tokens`` live in the same processes, and train on the same
batches of N samples. Each rank leaves what `take_turns` found: seconds of steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hybridperf.plan import ParallelPlan
from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import load
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.models import chain_of
from tests.performance.pairing import take_turns
from tests.performance.work import SEED

if TYPE_CHECKING:
    from hybridperf.tasks.task import Data, Task

DATA = "data.pickle"  #: file of the data in the folder
MODEL = {"hidden": 192, "heads": 4, "inner": 768, "layers": 4, "dropout": 0.0}
PAIRS = 20


class _Steps:
    """A trainer, each epoch of which is one step."""

    def __init__(self, task: Task, plan: ParallelPlan, device: torch.device) -> None:
        self._task, self._samples = task, load(task.data).train
        self._trainer = Trainer(chain_of(task, SEED), task, plan, build_mesh(plan, device), SEED)
        self._trainer.warm_up()

    def train_epoch(self, epoch: int) -> None:
        batch = self._task.training.global_batch_size
        block = Block((epoch - 1) * batch + 1, batch, "samples")
        self._trainer.train(
            TrainingData(self._samples, self._task, SEED, block, on_batch=lambda: None)
        )

    def mean_loss(self) -> float:
        loss = self._trainer.statistics()["loss"]
        assert isinstance(loss, float)
        return loss


def _task(data: Data, batch: int) -> Task:
    task = find_task("bert/workstation")
    assert data.text is not None
    return dataclasses.replace(
        task,
        data=data,
        model=task.model | MODEL | {"vocabulary": data.text.vocabulary},
        units=("embeddings", *(f"layers.{number}" for number in range(4)), "head"),
        training=dataclasses.replace(task.training, global_batch_size=batch),
    )


def _meet() -> None:
    dist.barrier()


if __name__ == "__main__":
    folder, plans = Path(sys.argv[2]), map(ParallelPlan.parse, ("dp=2,balance=tokens", "dp=2"))
    torch.set_num_threads(1)
    with join_ranks(ParallelPlan(dp=2)) as own_device:
        own = _task(pickle.loads((folder / DATA).read_bytes()), int(sys.argv[1]))
        balanced, plain = (_Steps(own, plan, own_device) for plan in plans)
        found = take_turns(balanced, plain, pairs=PAIRS, meet=_meet)
    (folder / f"rank_{os.environ['RANK']}.json").write_text(json.dumps(found))
