"""Samples as the harness hands them out: in its order, at its time, counted."""

from __future__ import annotations

import functools
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

    step: int  #: optimiser steps before this one, since the start of training
    indices: NDArray[np.int64]  #: into the training samples
    epochs: NDArray[np.int64]  #: of each sample, counted from 1: the last batch of one runs on


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The training samples, and the order in which a block visits them.

    An epoch is every sample once, in an order of seed and epoch only, so every plan trains on the
    same batches. They are all of one size, as in MLPerf's ResNet: epochs follow one another without
    a break, so what is left of one is the beginning of the next one's first batch.
    """

    samples: Samples
    task: Task
    seed: int
    block: Block
    on_batch: Callable[[], None]

    def batches(self) -> Iterator[Batch]:
        """Yield the block's global batches."""
        size, count = self.task.training.global_batch_size, self.task.data.train_samples
        order_of = functools.lru_cache(maxsize=2)(self._order)
        for step in self.task.steps(self.block):
            self.on_batch()
            before, places = np.divmod(np.arange(step * size, (step + 1) * size), count)
            parts = [
                order_of(epoch + 1)[places[before == epoch]] for epoch in np.unique(before).tolist()
            ]
            yield Batch(step, np.concatenate(parts), before + 1)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self.seed, epoch]).permutation(self.task.data.train_samples)


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
