from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from hybridperf.tasks.data import Samples
from hybridperf.tasks.registry import find_task
from hybridperf_reference.images.objective import ColourImages

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

TASK = find_task("resnet/workstation")
GENERATOR = np.random.default_rng(0)
SAMPLES = Samples(
    GENERATOR.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), np.arange(40, dtype=np.int64)
)


def _task(crop: Literal["none", "padded"], *, flip: bool) -> Task:
    training = dataclasses.replace(TASK.training, crop=crop, flip=flip)
    return dataclasses.replace(TASK, training=training)


def _inputs(task: Task, epoch: int = 1) -> torch.Tensor:
    objective = ColourImages(task)
    which = SAMPLES, np.arange(40), 7, epoch
    assert objective.targets(*which).tolist() == list(range(40))
    return objective.prepare(*objective.read(*which))


def test_images_are_normalized_by_channel() -> None:
    inputs = ColourImages(TASK).evaluation(SAMPLES.inputs[:3])

    means, stds = TASK.data.channel_means, TASK.data.channel_stds
    for channel in range(3):
        expected = (SAMPLES.inputs[:3, ..., channel] / 255 - means[channel]) / stds[channel]
        assert np.allclose(inputs[:, channel].numpy(), expected, atol=1e-5)


def test_without_augmentation_training_images_are_those_of_evaluation() -> None:
    still = _inputs(_task("none", flip=False))

    assert torch.equal(still, ColourImages(TASK).evaluation(SAMPLES.inputs))


def test_every_other_image_is_flipped() -> None:
    still, mirrored = (_inputs(_task("none", flip=flip)) for flip in (False, True))

    same = [torch.equal(*pair) for pair in zip(still, mirrored, strict=True)]
    other = [torch.equal(one, two.flip(2)) for one, two in zip(still, mirrored, strict=True)]
    assert all(a != b for a, b in zip(same, other, strict=True))
    assert 10 < sum(same) < 30


def test_a_crop_is_part_of_the_padded_image() -> None:
    still, cropped = (_inputs(_task(crop, flip=False)) for crop in ("none", "padded"))
    padded = torch.nn.functional.pad(still, [4] * 4)

    def corners(image: torch.Tensor, around: torch.Tensor) -> list[tuple[int, int]]:
        places = [(top, left) for top in range(9) for left in range(9)]
        return [
            (top, left)
            for top, left in places
            if torch.equal(image, around[:, top : top + 32, left : left + 32])
        ]

    found = [corners(*pair) for pair in zip(cropped, padded, strict=True)]
    assert all(len(each) == 1 for each in found)
    assert len({each[0] for each in found}) > 20


def test_crops_differ_between_epochs() -> None:
    task = _task("padded", flip=True)

    assert torch.equal(_inputs(task), _inputs(task))
    assert not torch.equal(_inputs(task), _inputs(task, epoch=2))
