"""The samples of a run as the trainer reads them, and the sealed memory that hands them over.

The harness hands over samples, as arrays; ranks hand over weights, as files. Neither side can
change memory that is sealed.
"""

from __future__ import annotations

import fcntl
import functools
import math
import mmap
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hybridperf.run.channel import Array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf.tasks.task import Block, Task

__all__ = [
    "Batch",
    "EvaluationData",
    "TrainingData",
    "map_array",
    "map_memory",
    "require_sealed",
    "seal_arrays",
    "seal_bytes",
]

_ALIGNMENT: Final = 64  # bytes
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


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
    part: range | None = None  #: steps of the block to visit; None: all

    @property
    def steps(self) -> range:
        """Return the optimiser steps to take, counted from the start of training."""
        return self.task.steps(self.block) if self.part is None else self.part

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        """Yield the global batches from ``first_step`` on, in order."""
        size, count = self.task.training.global_batch_size, self.task.data.train_samples
        order_of = functools.lru_cache(maxsize=2)(self._order)
        for step in range(max(first_step, self.steps.start), self.steps.stop):
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
        """Predict the ``classes`` of the samples in ``chunk``: [sample] or [sample, label].

        The shape is that of their labels. Each sample is predicted once, by one rank.
        """
        self.predicted.append((chunk, classes))


def seal_arrays(arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Array], int]:
    """Copy ``arrays`` into one sealed memory; return the place of each, and the file descriptor."""
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = Array(array.dtype.str, array.shape, end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    descriptor = _create_memory()
    os.ftruncate(descriptor, max(1, end))
    with mmap.mmap(descriptor, max(1, end)) as memory:
        for name, array in arrays.items():
            place = places[name]
            np.ndarray(array.shape, array.dtype, memory, place.offset)[...] = array
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return places, descriptor


def seal_bytes(content: bytes | memoryview) -> int:
    """Copy ``content`` into sealed memory, and return its file descriptor."""
    descriptor = _create_memory()
    with open(descriptor, "wb", buffering=0, closefd=False) as memory:
        left = memoryview(content)
        while left:
            left = left[memory.write(left) :]
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def require_sealed(descriptor: int, size: int) -> None:
    """Check that ``descriptor``, which a rank sent, is sealed memory of ``size`` bytes.

    Raises:
        ValueError: if it is not; somebody could still change its content.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memory, but a file, a socket or a pipe
        seals = 0
    if seals & _SEALS != _SEALS:
        raise ValueError("weights in memory that is not sealed")
    if (found := os.fstat(descriptor).st_size) != size:
        raise ValueError(f"{found} bytes of weights, where it says {size}")


def _create_memory() -> int:
    return os.memfd_create("hybridperf", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)


def map_memory(descriptor: int) -> mmap.mmap:
    """Return the memory ``descriptor``; writes to it stay private."""
    return mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def map_array(place: Array, memory: mmap.mmap | bytearray) -> NDArray[Any]:
    """Return the array at ``place`` of ``memory``, which they share.

    Raises:
        ValueError: if the memory is too small.
    """
    count, dtype = math.prod(place.shape), np.dtype(place.dtype)
    return np.frombuffer(memory, dtype, count, place.offset).reshape(place.shape)
