"""What a rank of a transparency test does: ``-m tests.engine.worlds <folder> <plan>...``.

One world runs all its plans, since starting a rank takes seconds of imports. Each rank leaves, for
every plan, the gradients of the first batch, and weights and quality after three steps.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import torch

from reference_impls.engine.mesh import build_mesh, join_ranks
from reference_impls.engine.trainer import Trainer
from reference_impls.models import chain_of
from suite.plan import ParallelPlan
from suite.runs.access import EvaluationData, TrainingData
from suite.tasks.data import Samples, Splits, load
from suite.tasks.registry import find_task
from suite.tasks.task import Block, Task

SEED = 7
STEPS = 3


def small_task() -> tuple[Task, Splits]:
    """Return ``resnet/laptop`` with an epoch of three steps, and its samples."""
    task = find_task("resnet/laptop")
    splits = load(task.data)
    count = STEPS * task.training.global_batch_size
    train = Samples(splits.train.images[:count], splits.train.labels[:count])
    data = dataclasses.replace(task.data, train_samples=count)
    return dataclasses.replace(task, data=data), Splits(train, splits.evaluation)


def training_data(task: Task, splits: Splits) -> TrainingData:
    """Return the three batches."""
    return TrainingData(splits.train, task, SEED, Block(1, 1), on_batch=lambda: None)


def run_plan(text: str, device: torch.device, path: Path) -> None:
    """Train under the plan ``text`` and save this rank's part of what came of it."""
    task, splits = small_task()
    plan = ParallelPlan.parse(text)
    mesh = build_mesh(plan, device)
    trainer = Trainer(chain_of(task, SEED), task, plan, mesh, SEED)
    trainer.warm_up()
    data = training_data(task, splits)
    before = {name: value.clone() for name, value in trainer.weights().items()}
    trainer._stage.train()
    trainer._executor.step(*trainer._share(data, next(iter(data.batches()))))
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in trainer._stage.named_parameters()
        if parameter.grad is not None
    }
    trainer._optimizer.zero_grad()
    trainer._stage.load_state_dict(before)
    trainer._timer.collect()  # forgets the step above
    trainer.train(data)
    statistics = trainer.statistics()
    quality = trainer.evaluate(EvaluationData(splits.evaluation, on_batch=lambda: None))
    found = {
        "gradients": gradients,
        "weights": {name: value.clone() for name, value in trainer.weights().items()},
        "quality": quality,
        "statistics": statistics,
    }
    torch.save(found, path)
    mesh.barrier()


def main() -> None:
    """Run every plan named on the command line."""
    folder, *plans = sys.argv[1:]
    rank = os.environ["RANK"]
    with join_ranks(ParallelPlan.parse(plans[0])) as device:
        for number, plan in enumerate(plans):
            run_plan(plan, device, Path(folder, f"plan_{number}_rank_{rank}.pt"))


if __name__ == "__main__":
    main()
