"""What a family of image classifiers learns from, by the kind of the task's data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from reference_impls.images.crops import ColourImages
from reference_impls.images.digits import SmallImages
from reference_impls.images.mixup import Mixup

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impls.engine.chain import Objective
    from suite.tasks.task import Task

__all__ = ["image_example", "image_objective"]


def image_objective(task: Task, image_px: int) -> Objective:
    """Return the objective of classifying the images of ``task``, ``image_px`` wide."""
    images, alpha = _unmixed(task, image_px), task.training.mixup
    if not alpha:
        return images
    classes = task.model["classes"]
    assert isinstance(classes, int)
    return Mixup(images, alpha=alpha, classes=classes)


def _unmixed(task: Task, image_px: int) -> Objective:
    match task.data.name:
        case "digits":
            return SmallImages(task, image_px)
        case "cifar10":
            return ColourImages(task)
        case "pictures":
            # Imported where it is needed: torchvision takes seconds.
            from reference_impls.images.encoded import EncodedImages

            return EncodedImages(task, image_px)
        case name:
            raise ValueError(f"no images in the data set {name!r}")


def image_example(batch: int, *, channels: int, image_px: int) -> tuple[Tensor, Tensor]:
    """Return ``batch`` synthetic images, normalised, and their labels."""
    images = torch.randn(batch, channels, image_px, image_px)
    return images, torch.zeros(batch, dtype=torch.int64)
