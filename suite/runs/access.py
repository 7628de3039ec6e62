"""Samples as the harness hands them out: in its order, at its time, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from suite.tasks.data import Samples
    from suite.tasks.task import Block, Task

__all__ = ["Batch", "EvaluationData", "TrainingData"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One global batch, the same on every rank; each takes its share."""

    epoch: int  #: counted from 1
    step: int  #: optimiser steps before this one, since the start of training
    indices: NDArray[np.int64]  #: into the training samples


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The training samples, and the order in which a block visits them.

    The order depends on seed and epoch only, so every plan trains on the same batches.
    """

    samples: Samples
    task: Task
    seed: int
    block: Block
    on_batch: Callable[[], None]

    def batches(self) -> Iterator[Batch]:
        """Yield the block's global batches; the last, partial batch of an epoch is dropped."""
        size, steps = self.task.training.global_batch_size, self.task.steps_per_epoch
        for epoch in range(self.block.first_epoch, self.block.last_epoch + 1):
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.samples))
            for step in range(steps):
                self.on_batch()
                indices = order[step * size : (step + 1) * size]
                yield Batch(epoch, (epoch - 1) * steps + step, indices)


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """The held-out samples."""

    samples: Samples
    on_batch: Callable[[], None]

    def __len__(self) -> int:
        return len(self.samples)

    def chunks(self, part: int, parts: int, size: int) -> Iterator[slice]:
        """Yield slices of at most ``size`` samples that cover share ``part`` of ``parts``."""
        first, last = (len(self) * index // parts for index in (part, part + 1))
        for start in range(first, last, size):
            self.on_batch()
            yield slice(start, min(start + size, last))
