"""Classification of small grayscale images that fit in memory, with affine augmentation."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch.nn import functional

from hybridperf_reference.images.classifier import ImagesInMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from hybridperf.tasks.task import Data, Task

__all__ = ["SmallImages", "affine", "draw_affine", "normalise"]


class SmallImages(ImagesInMemory):
    """The objective of the laptop tasks with grayscale images, upscaled to ``size_px``."""

    def __init__(self, task: Task, size_px: int) -> None:
        super().__init__(
            task,
            draw=partial(draw_affine, task=task),
            normalise=partial(normalise, data=task.data, size_px=size_px),
            augment=affine,
        )


def normalise(images: Tensor, *, data: Data, size_px: int) -> Tensor:
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

    Return images of the same shape. Values from outside of an image are those of its border.
    """
    grid = functional.affine_grid(numbers.view(-1, 2, 3), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
