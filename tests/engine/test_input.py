from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import Samples
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.input import feed
from hybridperf_reference.engine.timing import StepTimer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

TASK = find_task("resnet/laptop")


@dataclasses.dataclass
class Numbers:
    """An objective whose inputs say which sample was read, in which epoch."""

    reads_ahead: bool

    def read(
        self, samples: Samples, indices: NDArray[np.int64], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        return torch.from_numpy(samples.inputs[indices] + 1000 * epoch + seed), torch.full(
            indices.shape, epoch
        )

    def prepare(self, *stored: Tensor) -> tuple[Tensor, Tensor]:
        return stored[0], stored[1]

    def evaluation(self, stored: object) -> Tensor:
        raise NotImplementedError

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def count(self, targets: Tensor) -> int:
        raise NotImplementedError

    def predictions(self, outputs: Tensor) -> Tensor:
        raise NotImplementedError


def _data(samples: int = 20, batch: int = 6) -> TrainingData:
    task = dataclasses.replace(
        TASK,
        data=dataclasses.replace(TASK.data, train_samples=samples),
        training=dataclasses.replace(TASK.training, global_batch_size=batch),
    )
    everything = np.arange(samples)
    return TrainingData(Samples(everything, everything), task, 5, Block(2, 2), lambda: None)


def _read(
    own: slice, *, ahead: bool = False, first_step: int = 0, timer: StepTimer | None = None
) -> list[tuple[int, list[int]]]:
    device = torch.device("cpu")
    fed = feed(Numbers(ahead), _data(), own, device, timer or StepTimer(device), first_step)
    return [(batch.step, inputs.tolist()) for batch, inputs, _ in fed]


def test_replicas_together_read_each_sample_once_an_epoch() -> None:
    parts = [_read(slice(first, first + 2)) for first in (0, 2, 4)]

    assert [[step for step, _ in part] for part in parts] == [[3, 4, 5, 6, 7, 8, 9]] * 3
    epochs, seen = zip(
        *(divmod(number - 5, 1000) for part in parts for _, numbers in part for number in numbers),
        strict=True,
    )
    for epoch, first, left in ((1, 0, 18), (2, 0, 0), (3, 0, 0)):
        own = [number for each, number in zip(epochs, seen, strict=True) if each == epoch]
        assert len(own) == len(set(own)) == 20 - left + first  # the block begins with what 1 left
    assert set(epochs) == {1, 2, 3}


def test_what_is_read_ahead_is_the_same_and_comes_in_the_same_order() -> None:
    torch.manual_seed(1)
    drawn = torch.rand(1)
    torch.manual_seed(1)

    assert _read(slice(0, 6), ahead=True) == _read(slice(0, 6))
    assert torch.equal(torch.rand(1), drawn), "the process's own numbers are left alone"


def test_steps_before_a_checkpoint_are_not_read() -> None:
    assert _read(slice(0, 6), first_step=5) == _read(slice(0, 6))[2:]


@pytest.mark.parametrize("ahead", [False, True])
def test_what_reading_takes_is_told_wherever_it_is_done(ahead: bool) -> None:
    timer = StepTimer(torch.device("cpu"))

    _read(slice(0, 6), ahead=ahead, timer=timer)

    seconds = timer.collect()
    assert seconds["read"] > 0
    assert seconds["prepare"] > 0
    assert set(timer.collect().values()) == {0}
