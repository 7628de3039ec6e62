"""Image classification: the parts of objectives independent of reading and augmentation."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf.tasks.task import Task

__all__ = ["ImageClassifier", "ImagesInMemory"]


class ImageClassifier:
    """Cross-entropy with label smoothing, and the most likely class."""

    def __init__(self, task: Task) -> None:
        self._loss = nn.CrossEntropyLoss(
            label_smoothing=task.training.label_smoothing, reduction="sum"
        )

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return the labels [batch] of the images ``indices`` [batch]."""
        del seed, epoch  # labels are the same in every epoch
        return torch.from_numpy(samples.labels[indices])

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy [] summed over images.

        ``outputs`` are logits [batch, class]. ``targets`` are classes [batch], or probabilities
        with the shape of the logits.
        """
        loss: Tensor = self._loss(outputs, targets)
        return loss

    def count(self, targets: Tensor) -> int:
        """Return the number of images, the rows of ``targets`` [batch] or [batch, class]."""
        return len(targets)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely class [batch] of each image for logits [batch, class]."""
        return outputs.argmax(dim=1)


class ImagesInMemory(ImageClassifier):
    """The objective for images that fit in memory, augmented in whole batches on the device."""

    reads_ahead = False

    def __init__(
        self,
        task: Task,
        *,
        draw: Callable[[int, int, int], NDArray[Any]],
        normalise: Callable[[Tensor], Tensor],
        augment: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """Take the functions that draw augmentation parameters, normalize images and augment them.

        ``draw`` returns [sample, parameter] for a seed, an epoch and a number of samples;
        ``normalise`` images [batch, channel, height, width] for bytes [batch, ...]; ``augment``
        images of the same shape for those images and their parameters [batch, parameter].
        """
        super().__init__(task)
        # The random numbers of an epoch are drawn at once, and used batch by batch.
        self._draw = functools.lru_cache(maxsize=1)(draw)
        self._normalise, self._augment = normalise, augment

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return image bytes [batch, ...] and augmentation parameters [batch, parameter].

        ``indices`` [batch] select the images.
        """
        numbers = self._draw(seed, epoch, len(samples))[indices]
        return torch.from_numpy(samples.inputs[indices]), torch.from_numpy(numbers)

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return normalized, augmented images [batch, channel, height, width]."""
        images, numbers = stored
        return self._augment(self._normalise(images), numbers)

    def evaluation(self, stored: Any) -> Tensor:
        """Return normalized images [batch, channel, height, width] for image bytes [batch, ...]."""
        return self._normalise(torch.from_numpy(stored))
