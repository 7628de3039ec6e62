"""Training samples for each step; where reading them takes long, read ahead by other processes."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from reference_impls.engine.chain import Objective
    from suite.runs.access import Batch, TrainingData

__all__ = ["feed"]

_MOST_WORKERS = 16
_Share = tuple[int, "NDArray[Any]"]  #: an epoch, and indices of its samples


def feed(
    objective: Objective, data: TrainingData, own: slice, device: torch.device, first_step: int = 0
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Yield each batch from ``first_step`` on, with inputs and targets of its share ``own``.

    What comes is the same however it is read: an objective draws by seed, epoch and sample alone.
    """
    taken: deque[Batch] = deque()

    def shares() -> Iterator[_Share]:
        for batch in data.batches():
            if batch.step >= first_step:
                taken.append(batch)
                yield batch.epoch, batch.indices[own]

    reader = _Reader(objective, data)
    stored: Any = map(reader.__getitem__, shares())
    if objective.reads_ahead:
        stored = DataLoader(
            reader,
            sampler=shares(),
            batch_size=None,  # a share is read whole
            num_workers=_workers(),
            pin_memory=device.type != "cpu",
            generator=torch.Generator(),  # leaves the process's own numbers alone
        )
    for parts in stored:
        inputs, targets = objective.prepare(*(part.to(device, non_blocking=True) for part in parts))
        yield taken.popleft(), inputs, targets


class _Reader(Dataset[tuple["Tensor", ...]]):
    """What a worker process holds: it reads shares."""

    def __init__(self, objective: Objective, data: TrainingData) -> None:
        self._objective, self._samples, self._seed = objective, data.samples, data.seed

    def __getitem__(self, share: _Share) -> tuple[Tensor, ...]:
        epoch, indices = share
        return self._objective.read(self._samples, indices, self._seed, epoch)


def _workers() -> int:
    """Return this rank's part of the processor cores it may use."""
    cores, ranks = len(os.sched_getaffinity(0)), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(_MOST_WORKERS, max(1, cores // ranks))
