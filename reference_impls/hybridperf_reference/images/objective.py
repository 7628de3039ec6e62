"""The objective of an image classification task, by its data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hybridperf_reference.images.crops import ColourImages
from hybridperf_reference.images.digits import SmallImages
from hybridperf_reference.images.mixup import Mixup

if TYPE_CHECKING:
    from torch import Tensor

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Objective

__all__ = ["image_example", "image_objective"]


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
            # Imported lazily: torchvision takes seconds.
            from hybridperf_reference.images.encoded import EncodedImages

            return EncodedImages(task, image_px)
        case name:
            raise ValueError(f"no images in the data set {name!r}")


def image_example(batch: int, *, channels: int, image_px: int) -> tuple[Tensor, Tensor]:
    """Return ``batch`` random images [batch, channel, image_px, image_px] and labels [batch]."""
    images = torch.randn(batch, channels, image_px, image_px)
    return images, torch.zeros(batch, dtype=torch.int64)
