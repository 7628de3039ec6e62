"""Classification of images that are read, decoded and augmented on demand, with torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms import v2

from hybridperf_reference.images.classifier import ImageClassifier
from hybridperf_reference.images.crops import normalised

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf.tasks.data.pictures import EncodedImage
    from hybridperf.tasks.task import Task

__all__ = ["EncodedImages"]

_SHARE = 224 / 256  #: of an image's shorter side: the edge of the center crop in evaluation


class EncodedImages(ImageClassifier):
    """The objective of the cluster's image tasks."""

    reads_ahead = True

    def __init__(self, task: Task, image_px: int) -> None:
        super().__init__(task)
        self._task = task
        train: list[nn.Module] = [v2.RandomResizedCrop(image_px, antialias=True)]
        if task.training.flip:
            train.append(v2.RandomHorizontalFlip())
        self._augment = v2.Compose(train)
        self._center_crop = v2.Compose(
            [v2.Resize(round(image_px / _SHARE), antialias=True), v2.CenterCrop(image_px)]
        )

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return decoded, cropped images ``indices`` [batch]: bytes [batch, 3, image_px, image_px].

        Raises:
            RuntimeError: if an image cannot be decoded; the message names it.
        """
        images = []
        with torch.random.fork_rng(devices=[]):
            for index, encoded in zip(indices, samples.inputs[indices], strict=True):
                numbers = np.random.SeedSequence([seed, epoch, 1, int(index)])
                torch.default_generator.manual_seed(int(numbers.generate_state(1)[0]))
                images.append(self._augment(_decode(encoded)))
        return (torch.stack(images),)

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return normalized images [batch, 3, image_px, image_px] for bytes of the same shape."""
        (images,) = stored
        return normalised(images, self._task)

    def evaluation(self, stored: Any) -> Tensor:
        """Return resized, center-cropped and normalized images [batch, 3, image_px, image_px].

        Raises:
            RuntimeError: as `read`.
        """
        images = torch.stack([self._center_crop(_decode(encoded)) for encoded in stored])
        return normalised(images, self._task)


def _decode(encoded: EncodedImage) -> Tensor:
    """Return an image's pixels as bytes [3, height, width].

    Raises:
        RuntimeError: if the image cannot be decoded; the message names it.
    """
    try:
        pixels = encoded.pixels()
    except ValueError as error:
        raise RuntimeError(f"{encoded.name}: expected a JPEG or PNG, found: {error}") from None
    return torch.from_numpy(pixels).permute(2, 0, 1)
