"""Learn to classify images: what is the same however they are read and moved."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from suite.tasks.data import Samples
    from suite.tasks.task import Task

__all__ = ["ImageClassifier", "ImagesInMemory"]


class ImageClassifier:
    """Cross-entropy, and the likeliest class."""

    def __init__(self, task: Task) -> None:
        self._loss = nn.CrossEntropyLoss(label_smoothing=task.training.label_smoothing)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy, averaged over samples."""
        loss: Tensor = self._loss(outputs, targets)
        return loss

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the likeliest class of each image."""
        return outputs.argmax(dim=1)


class ImagesInMemory(ImageClassifier):
    """The objective of images that fit in memory, changed in whole batches on their device."""

    reads_ahead = False

    def __init__(
        self,
        task: Task,
        *,
        draw: Callable[[int, int, int], NDArray[Any]],
        normalised: Callable[[Tensor], Tensor],
        moved: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """Take how numbers are drawn for (seed, epoch, samples), and how they move images."""
        super().__init__(task)
        # One epoch's numbers are drawn together, and asked for batch by batch.
        self._draw = functools.lru_cache(maxsize=1)(draw)
        self._normalised, self._moved = normalised, moved

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return bytes, the numbers that move them, and labels."""
        numbers = self._draw(seed, epoch, len(samples))[indices]
        parts = (samples.inputs[indices], numbers, samples.labels[indices])
        return tuple(map(torch.from_numpy, parts))

    def prepare(self, *stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised and moved images [batch, channel, height, width], labels [batch]."""
        images, numbers, labels = stored
        return self._moved(self._normalised(images), numbers), labels

    def evaluation(self, stored: Any) -> Tensor:
        """Return normalised images."""
        return self._normalised(torch.from_numpy(stored))
