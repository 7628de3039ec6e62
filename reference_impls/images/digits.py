"""Learn to classify small images that fit in memory, moved a little while training."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from reference_impls.images.affine import affine, draw_affine, normalise

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suite.tasks.data import Samples
    from suite.tasks.task import Task

__all__ = ["SmallImages"]


class SmallImages:
    """The objective of the laptop tasks: grey images, upscaled to ``size_px``."""

    reads_ahead = False

    def __init__(self, task: Task, size_px: int) -> None:
        self._task, self._size_px = task, size_px
        self._loss = nn.CrossEntropyLoss(label_smoothing=task.training.label_smoothing)
        # One epoch's numbers are drawn together, and asked for batch by batch.
        self._draw = functools.lru_cache(maxsize=1)(functools.partial(draw_affine, task=task))

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return bytes, the numbers that move them, and labels."""
        numbers = self._draw(seed, epoch, len(samples))[indices]
        parts = (samples.inputs[indices], numbers, samples.labels[indices])
        return tuple(map(torch.from_numpy, parts))

    def prepare(self, *stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised and moved images [batch, 1, size, size], and labels [batch]."""
        images, numbers, labels = stored
        return affine(self._scaled(images), numbers), labels

    def evaluation(self, stored: Any) -> Tensor:
        """Return normalised images."""
        return self._scaled(torch.from_numpy(stored))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy, averaged over samples."""
        loss: Tensor = self._loss(outputs, targets)
        return loss

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the likeliest class of each image."""
        return outputs.argmax(dim=1)

    def _scaled(self, images: Tensor) -> Tensor:
        return normalise(images, data=self._task.data, size_px=self._size_px)
