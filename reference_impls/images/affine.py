"""Small images: upscaled, normalised, and slightly moved while training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from torch.nn import functional

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from suite.tasks.task import Data, Task

__all__ = ["affine", "draw_affine", "normalise"]


def normalise(images: Tensor, *, data: Data, size_px: int) -> Tensor:
    """Return ``images`` [batch, height, width] of bytes as normalised [batch, 1, size, size]."""
    scaled = (images.unsqueeze(1).float() / 255 - data.mean) / data.std
    return functional.interpolate(scaled, size=size_px, mode="bilinear", align_corners=False)


def draw_affine(seed: int, epoch: int, samples: int, *, task: Task) -> NDArray[np.float32]:
    """Draw for each sample the six numbers of the map that turns, scales and shifts it.

    They depend on seed, epoch and sample alone, so every plan sees the same images.
    """
    training = task.training
    generator = np.random.default_rng([seed, epoch, 1])
    angle, scale, right, down = generator.uniform(-1, 1, size=(4, samples))
    angle *= math.radians(training.rotation_degrees)
    scale = 1 + training.scale * scale
    right, down = (2 * training.shift * part for part in (right, down))  # widths are 2 units
    cos, sin = scale * np.cos(angle), scale * np.sin(angle)
    return np.stack([cos, -sin, right, sin, cos, down], axis=1).astype(np.float32)


def affine(images: Tensor, numbers: Tensor) -> Tensor:
    """Return ``images`` moved by the maps in ``numbers`` [batch, 6]; what enters is background."""
    grid = functional.affine_grid(numbers.view(-1, 2, 3), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
