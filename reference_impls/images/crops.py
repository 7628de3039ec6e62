"""Learn to classify colour images that fit in memory, cropped and mirrored while training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suite.tasks.data import Samples
    from suite.tasks.task import Task

__all__ = ["ColourImages", "normalised"]

_BORDER = 4


class ColourImages:
    """The objective of CIFAR-10: all changes are made to whole batches, on their device."""

    reads_ahead = False

    def __init__(self, task: Task) -> None:
        self._task = task
        self._loss = nn.CrossEntropyLoss(label_smoothing=task.training.label_smoothing)
        self._draw = functools.lru_cache(maxsize=1)(self._draw_epoch)

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return bytes, the numbers that crop and mirror them, and labels."""
        numbers = self._draw(seed, epoch, len(samples))[indices]
        parts = (samples.inputs[indices], numbers, samples.labels[indices])
        return tuple(map(torch.from_numpy, parts))

    def prepare(self, *stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised images [batch, 3, height, width], and labels [batch]."""
        images, numbers, labels = stored
        return _cropped(self._normalised(images), numbers), labels

    def evaluation(self, stored: Any) -> Tensor:
        """Return normalised images."""
        return self._normalised(torch.from_numpy(stored))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy, averaged over samples."""
        loss: Tensor = self._loss(outputs, targets)
        return loss

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the likeliest class of each image."""
        return outputs.argmax(dim=1)

    def _normalised(self, images: Tensor) -> Tensor:
        return normalised(images.permute(0, 3, 1, 2), self._task)

    def _draw_epoch(self, seed: int, epoch: int, samples: int) -> NDArray[np.int64]:
        """Return for each sample the crop's left and top edge, and whether it is mirrored."""
        generator = np.random.default_rng([seed, epoch, 1])
        training = self._task.training
        most = 2 * _BORDER if training.crop == "padded" else 0
        corners = generator.integers(0, most + 1, size=(samples, 2))
        if not most:
            corners += _BORDER
        mirrored = generator.integers(0, 2, size=(samples, 1)) * int(training.flip)
        return np.concatenate([corners, mirrored], axis=1)


def normalised(images: Tensor, task: Task) -> Tensor:
    """Return ``images`` [batch, 3, height, width] of bytes, normalised by the task's numbers."""
    means, stds = (
        torch.tensor(numbers, device=images.device).view(-1, 1, 1) * 255
        for numbers in (task.data.channel_means, task.data.channel_stds)
    )
    return (images - means) / stds


def _cropped(images: Tensor, numbers: Tensor) -> Tensor:
    """Return the part of each image, with a border around it, that ``numbers`` [batch, 3] name."""
    size = images.shape[-1]
    padded = functional.pad(images, [_BORDER] * 4)
    left, top, mirrored = (column.view(-1, 1) for column in numbers.unbind(dim=1))
    steps = torch.arange(size, device=images.device)
    columns = left + torch.where(mirrored > 0, size - 1 - steps, steps)
    rows = top + steps
    batch = torch.arange(len(images), device=images.device).view(-1, 1, 1)
    # The channels, between indices, come last.
    return padded[batch, :, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)
