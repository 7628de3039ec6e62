"""Classification of color images that fit in memory, randomly cropped and flipped in training."""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridperf_reference.images.classifier import ImagesInMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Task

__all__ = ["ColourImages", "normalised"]

_BORDER = 4


class ColourImages(ImagesInMemory):
    """The objective of CIFAR-10."""

    def __init__(self, task: Task) -> None:
        def normalise(images: Tensor) -> Tensor:
            return normalised(images.permute(0, 3, 1, 2), task)

        super().__init__(
            task, draw=partial(_draw, task=task), normalise=normalise, augment=_cropped
        )


def _draw(seed: int, epoch: int, samples: int, *, task: Task) -> NDArray[np.int64]:
    """Draw for each sample the crop's left and top edge and whether it is flipped: [sample, 3]."""
    generator = np.random.default_rng([seed, epoch, 1])
    training = task.training
    most = 2 * _BORDER if training.crop == "padded" else 0
    corners = generator.integers(0, most + 1, size=(samples, 2))
    if not most:
        corners += _BORDER
    mirrored = generator.integers(0, 2, size=(samples, 1)) * int(training.flip)
    return np.concatenate([corners, mirrored], axis=1)


def normalised(images: Tensor, task: Task) -> Tensor:
    """Return bytes [batch, 3, height, width] normalized by the task's means and deviations.

    The result has the same shape, in fp32.
    """
    means = _of_bytes(task.data.channel_means, images.device)
    return (images - means) / _of_bytes(task.data.channel_stds, images.device)


@functools.cache  # copying to an accelerator in every step would synchronize with it
def _of_bytes(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return per-channel ``numbers`` in [0, 1] scaled to bytes, as a tensor [channel, 1, 1]."""
    return torch.tensor(numbers, device=device).view(-1, 1, 1) * 255


def _cropped(images: Tensor, numbers: Tensor) -> Tensor:
    """Crop and flip ``images``, padded by a border, as ``numbers`` [batch, 3] describe.

    ``images`` are [batch, channel, height, width], and so is the result. For the numbers see
    `_draw`.
    """
    size = images.shape[-1]
    padded = functional.pad(images, [_BORDER] * 4)
    left, top, mirrored = (column.view(-1, 1) for column in numbers.unbind(dim=1))
    steps = torch.arange(size, device=images.device)
    columns = left + torch.where(mirrored > 0, size - 1 - steps, steps)
    rows = top + steps
    batch = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    # Advanced indexing puts the channel dimension last.
    return padded[batch, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)
