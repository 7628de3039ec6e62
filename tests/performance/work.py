"""What both sides of a comparison train: a task, and its samples in memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import Samples, load
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Objective

__all__ = ["SEED", "Work", "build_work"]

SEED = 7


@dataclass(frozen=True)
class Work:
    """A task and its training samples."""

    task: Task
    samples: Samples

    def epoch(self, number: int) -> TrainingData:
        """Return the batches of an epoch, as the harness hands them to a trainer."""
        return TrainingData(self.samples, self.task, SEED, Block(number, 1), on_batch=_nothing)

    def batches(
        self, objective: Objective, number: int, replica: int = 0, replicas: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of a replica in an epoch, read as a script would read them."""
        share = self.task.training.global_batch_size // replicas
        own = slice(replica * share, (replica + 1) * share)
        for batch in self.epoch(number).batches():
            which = self.samples, batch.indices[own], SEED, number
            yield objective.prepare(*objective.read(*which)), objective.targets(*which)


def build_work(
    task_name: str,
    *,
    batch: int | None = None,
    steps: int | None = None,
    model: dict[str, Any] | None = None,
    model_of: str | None = None,
    optimizer: dict[str, Any] | None = None,
) -> Work:
    """Return the work of a task, with other numbers where they are given, or another task's model.

    Images of CIFAR-10, which is not on every machine, are noise of the model's size.
    """
    task = find_task(task_name)
    other = find_task(model_of or task_name)
    batch = batch or task.training.global_batch_size
    count = (steps or task.data.train_samples // batch) * batch
    task = dataclasses.replace(
        task,
        units=other.units,
        model=other.model | (model or {}),
        data=dataclasses.replace(task.data, train_samples=count),
        training=dataclasses.replace(task.training, global_batch_size=batch),
        # So long a schedule that no rate is zero.
        optimizer=dataclasses.replace(task.optimizer, decay_epochs=1000, **(optimizer or {})),
    )
    if task.data.name != "cifar10":
        return Work(task, load(find_task(task_name).data).train)
    generator = np.random.default_rng(SEED)
    size = task.model["image_px"]
    assert isinstance(size, int)
    images = generator.integers(0, 256, size=(count, size, size, 3), dtype=np.uint8)
    return Work(task, Samples(images, generator.integers(0, 10, size=count)))


def _nothing() -> None:
    """Nobody counts batches here."""
