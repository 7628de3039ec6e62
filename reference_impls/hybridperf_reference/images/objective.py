"""Objectives of image classification: reading, augmentation, normalization and loss."""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf.tasks.data.pictures import EncodedImage
    from hybridperf.tasks.task import Data, Task
    from hybridperf_reference.engine.chain import Objective

__all__ = [
    "ColourImages",
    "EncodedImages",
    "ImageClassifier",
    "ImagesInMemory",
    "Mixup",
    "SmallImages",
    "affine",
    "draw_affine",
    "draw_partners",
    "image_example",
    "image_objective",
    "normalize",
    "normalize_channels",
]


def image_objective(task: Task, image_px: int) -> Objective:
    """Return the objective of ``task`` for images of ``image_px`` x ``image_px`` pixels.

    With mixup if the task states it.

    Raises:
        ValueError: if the task's data set has no images.
    """
    images, alpha = _base_objective(task, image_px), task.training.mixup
    if not alpha:
        return images
    classes = task.model["classes"]
    assert isinstance(classes, int)
    return Mixup(images, alpha=alpha, classes=classes)


def _base_objective(task: Task, image_px: int) -> Objective:
    match task.data.name:
        case "digits":
            return SmallImages(task, image_px)
        case "cifar10":
            return ColourImages(task)
        case "pictures":
            return EncodedImages(task, image_px)
        case name:
            raise ValueError(f"no images in the data set {name!r}")


def image_example(batch: int, *, channels: int, image_px: int) -> tuple[Tensor, Tensor]:
    """Return ``batch`` random images [batch, channel, image_px, image_px] and labels [batch]."""
    images = torch.randn(batch, channels, image_px, image_px)
    return images, torch.zeros(batch, dtype=torch.int64)


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
        normalize: Callable[[Tensor], Tensor],
        augment: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """Take the functions that draw augmentation parameters, normalize images and augment them.

        ``draw`` returns [sample, parameter] for a seed, an epoch and a number of samples;
        ``normalize`` images [batch, channel, height, width] for bytes [batch, ...]; ``augment``
        images of the same shape for those images and their parameters [batch, parameter].
        """
        super().__init__(task)
        # The random numbers of an epoch are drawn at once, and used batch by batch.
        self._draw = functools.lru_cache(maxsize=1)(draw)
        self._normalise, self._augment = normalize, augment

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


class SmallImages(ImagesInMemory):
    """The objective of the laptop tasks with grayscale images, upscaled to ``size_px``."""

    def __init__(self, task: Task, size_px: int) -> None:
        super().__init__(
            task,
            draw=partial(draw_affine, task=task),
            normalize=partial(normalize, data=task.data, size_px=size_px),
            augment=affine,
        )


def normalize(images: Tensor, *, data: Data, size_px: int) -> Tensor:
    """Normalize and upscale image bytes [batch, height, width] to [batch, 1, size_px, size_px]."""
    scaled = (images.unsqueeze(1).float() / 255 - data.mean) / data.std
    return functional.interpolate(scaled, size=size_px, mode="bilinear", align_corners=False)


def draw_affine(seed: int, epoch: int, samples: int, *, task: Task) -> NDArray[np.float32]:
    """Draw for each sample a random rotation, scale and shift, as affine parameters [sample, 6].

    They depend only on seed, epoch and sample index, so every plan trains on identical images.
    """
    training = task.training
    generator = np.random.default_rng([seed, epoch, 1])
    angle, scale, right, down = generator.uniform(-1, 1, size=(4, samples))
    angle *= math.radians(training.rotation_degrees)
    scale = 1 + training.scale * scale
    right, down = (2 * training.shift * part for part in (right, down))  # images span 2 units
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    return np.stack([cos, -sin, right, sin, cos, down], axis=1).astype(np.float32)


def affine(images: Tensor, numbers: Tensor) -> Tensor:
    """Apply the affine maps ``numbers`` [batch, 6] to ``images`` [batch, channel, height, width].

    Return images of the same shape. Values outside of an image repeat its border.
    """
    grid = functional.affine_grid(numbers.view(-1, 2, 3), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


_BORDER = 4


class ColourImages(ImagesInMemory):
    """The objective of CIFAR-10."""

    def __init__(self, task: Task) -> None:
        def normalize(images: Tensor) -> Tensor:
            return normalize_channels(images.permute(0, 3, 1, 2), task)

        super().__init__(task, draw=partial(_draw, task=task), normalize=normalize, augment=_crop)


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


def normalize_channels(images: Tensor, task: Task) -> Tensor:
    """Return bytes [batch, 3, height, width] normalized by the task's means and deviations.

    The result has the same shape, in fp32.
    """
    means = _scale_to_bytes(task.data.channel_means, images.device)
    return (images - means) / _scale_to_bytes(task.data.channel_stds, images.device)


@functools.cache  # copying to an accelerator in every step would synchronize with it
def _scale_to_bytes(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    """Return per-channel ``numbers`` in [0, 1] scaled to bytes, as a tensor [channel, 1, 1]."""
    return torch.tensor(numbers, device=device).view(-1, 1, 1) * 255


def _crop(images: Tensor, numbers: Tensor) -> Tensor:
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


_SHARE = 224 / 256  #: edge of the center crop in evaluation, over the image's shorter side


class EncodedImages(ImageClassifier):
    """The objective of the cluster's image tasks."""

    reads_ahead = True

    def __init__(self, task: Task, image_px: int) -> None:
        from torchvision.transforms import v2  # lazily: takes seconds

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
        return normalize_channels(images, self._task)

    def evaluation(self, stored: Any) -> Tensor:
        """Return resized, center-cropped and normalized images [batch, 3, image_px, image_px].

        Raises:
            RuntimeError: as `read`.
        """
        images = torch.stack([self._center_crop(_decode(encoded)) for encoded in stored])
        return normalize_channels(images, self._task)


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


class Mixup:
    """The objective ``images``, trained on convex combinations of two images and of their labels.

    Mixup (Zhang et al. 2018); every sample has its own partner and mixing weight.
    """

    def __init__(self, images: Objective, *, alpha: float, classes: int) -> None:
        """Set ``alpha`` of the Beta(alpha, alpha) distribution that mixing weights come from."""
        self._images, self._alpha, self._classes = images, alpha, classes
        self.reads_ahead = images.reads_ahead
        self.evaluation = images.evaluation
        self.loss, self.count = images.loss, images.count
        self.predictions = images.predictions

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return the raw inputs of samples ``indices`` [batch] and of their partners.

        The last tensor is the samples' mixing weights [batch].
        """
        partners, shares = draw_partners(seed, epoch, len(samples), self._alpha)
        own = self._images.read(samples, indices, seed, epoch)
        others = self._images.read(samples, partners[indices], seed, epoch)
        return *own, *others, torch.from_numpy(shares[indices])

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return mixed images [batch, channel, height, width] from the tensors of `read`."""
        *both, shares = stored
        half = len(both) // 2
        pairs = zip(both[:half], both[half:], strict=True)
        return _mix(self._images.prepare(*map(torch.cat, pairs)), shares)

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return mixed class probabilities [batch, class] of the samples ``indices`` [batch]."""
        partners, shares = draw_partners(seed, epoch, len(samples), self._alpha)
        labels = torch.cat(
            [
                self._images.targets(samples, some, seed, epoch)
                for some in (indices, partners[indices])
            ]
        )
        weights = torch.from_numpy(shares[indices])
        return _mix(functional.one_hot(labels, self._classes).to(weights.dtype), weights)


@functools.lru_cache(maxsize=1)  # drawn for a whole epoch at once, used batch by batch
def draw_partners(
    seed: int, epoch: int, samples: int, alpha: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw each sample's partner and its own weight in their mixture, both [sample].

    They depend only on seed, epoch and sample index, so every plan trains on identical mixtures.
    """
    generator = np.random.default_rng([seed, epoch, 2])
    partners = generator.integers(0, samples, size=samples)
    return partners, generator.beta(alpha, alpha, size=samples).astype(np.float32)


def _mix(both: Tensor, shares: Tensor) -> Tensor:
    """Mix the halves of ``both`` [2 batch, ...]; ``shares`` [batch] are weights of the first."""
    first, second = both.chunk(2)
    own = shares.view(-1, *[1] * (both.dim() - 1))
    return own * first + (1 - own) * second
