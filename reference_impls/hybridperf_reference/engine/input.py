"""Training samples for each step, read in advance by worker processes if reading is slow."""

from __future__ import annotations

import os
import time
import traceback
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from hybridperf.run.access import Batch, TrainingData
    from hybridperf_reference.engine.chain import Objective
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["feed"]

_MOST_WORKERS = 16
_Share = tuple["NDArray[Any]", "NDArray[Any]"]  #: sample indices [batch], their epochs [batch]


def feed(
    objective: Objective,
    data: TrainingData,
    own: slice,
    device: torch.device,
    timer: StepTimer,
    first_step: int = 0,
) -> Iterator[tuple[Batch, Tensor, Tensor]]:
    """Yield each batch from ``first_step`` on, with this rank's inputs and targets on ``device``.

    ``own`` selects this rank's samples from the global batch. The tensors do not depend on how they
    are read: an objective draws random numbers by seed, epoch and sample only. Reading time is
    added to ``timer``; that of workers, divided by their number.
    """
    taken: deque[Batch] = deque()

    def shares() -> Iterator[_Share]:
        for batch in data.batches():
            if batch.step >= first_step:
                taken.append(batch)
                yield batch.indices[own], batch.epochs[own]

    reader = _Reader(objective, data)
    stored: Any = map(reader.__getitem__, shares())
    readers = _workers() if objective.reads_ahead else 1
    if objective.reads_ahead:
        stored = DataLoader(
            reader,
            sampler=shares(),
            batch_size=None,  # each index is a whole batch
            num_workers=readers,
            pin_memory=device.type != "cpu",
            generator=torch.Generator(),  # leaves the default generator alone
        )
    for read in stored:
        timer.count("read", read.seconds / readers)
        with timer.part("prepare"):
            parts = (part.to(device, non_blocking=True) for part in read.parts)
            inputs, targets = objective.prepare(*parts)
        yield taken.popleft(), inputs, targets


class _Read(NamedTuple):
    """A rank's samples of one batch, and the seconds that reading them took."""

    parts: tuple[Tensor, ...]
    seconds: float


class _Reader(Dataset[_Read]):
    """Dataset for DataLoader workers: reads a rank's samples of one batch."""

    def __init__(self, objective: Objective, data: TrainingData) -> None:
        self._objective, self._samples, self._seed = objective, data.samples, data.seed

    def __getitem__(self, share: _Share) -> _Read:
        start = time.perf_counter()
        try:
            parts = self._parts(*share)
        except Exception:
            if get_worker_info() is not None:
                traceback.print_exc()  # torch reports only that a worker failed
            raise
        return _Read(parts, time.perf_counter() - start)

    def _parts(self, indices: NDArray[Any], epochs: NDArray[Any]) -> tuple[Tensor, ...]:
        """Return what the objective reads of each epoch, concatenated along the batch."""
        read = [
            self._objective.read(self._samples, indices[epochs == epoch], self._seed, epoch)
            for epoch in np.unique(epochs).tolist()
        ]
        return read[0] if len(read) == 1 else tuple(map(torch.cat, zip(*read, strict=True)))


def _workers() -> int:
    """Return how many worker processes this rank starts: its share of the available CPU cores."""
    cores, ranks = len(os.sched_getaffinity(0)), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(_MOST_WORKERS, max(1, cores // ranks))
