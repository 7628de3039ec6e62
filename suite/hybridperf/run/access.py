"""The samples that the harness gives to the trainer, in the order that the harness decides."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf.tasks.task import Block, Task

__all__ = ["Batch", "EvaluationData", "TrainingData"]


@dataclass(frozen=True, slots=True)
class Batch:
    """One global batch, identical on every rank; each rank trains on its share."""

    step: int  #: optimiser step, counted from 0 at the start of training
    indices: NDArray[np.int64]  #: [sample]: into the training samples
    epochs: NDArray[np.int64]  #: [sample]: counted from 1; a batch may span two epochs


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The training samples, and the order in which a block visits them.

    Each epoch is a permutation of all samples that depends on seed and epoch only, so every plan
    trains on the same batches. All batches have one size, as in MLPerf's ResNet: a batch that an
    epoch does not fill is completed with the first samples of the next epoch.
    """

    samples: Samples
    task: Task
    seed: int
    block: Block
    on_batch: Callable[[], None]

    def batches(self) -> Iterator[Batch]:
        """Yield the global batches of the block, in order."""
        size, count = self.task.training.global_batch_size, self.task.data.train_samples
        order_of = functools.lru_cache(maxsize=2)(self._order)
        for step in self.task.steps(self.block):
            self.on_batch()
            before, places = np.divmod(np.arange(step * size, (step + 1) * size), count)
            parts = [
                order_of(epoch + 1)[places[before == epoch]]
                for epoch in range(int(before[0]), int(before[-1]) + 1)
            ]
            yield Batch(step, np.concatenate(parts), before + 1)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self.seed, epoch]).permutation(self.task.data.train_samples)


@dataclass(frozen=True, slots=True)
class EvaluationData:
    """The inputs of the evaluation samples, and the predictions for them."""

    inputs: Any  #: indexed by slice, [sample, ...]; labels stay with the harness
    on_batch: Callable[[], None]
    predicted: list[tuple[slice, NDArray[np.int64]]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.inputs)

    def chunks(self, part: int, parts: int, size: int) -> Iterator[slice]:
        """Yield slices of at most ``size`` samples that cover part ``part`` of ``parts``.

        Parts are counted from 0 and differ in size by at most one sample.
        """
        first, last = (len(self) * index // parts for index in (part, part + 1))
        for start in range(first, last, size):
            self.on_batch()
            yield slice(start, min(start + size, last))

    def predict(self, chunk: slice, classes: NDArray[np.int64]) -> None:
        """Predict the ``classes`` of the samples in ``chunk``, in the shape of their labels.

        That is [sample], or [sample, label] for tasks with several labels per sample. Each sample
        is predicted once, by one rank.
        """
        self.predicted.append((chunk, classes))
