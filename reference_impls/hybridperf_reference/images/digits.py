"""Classification of small grayscale images that fit in memory, with affine augmentation."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hybridperf_reference.images.affine import affine, draw_affine, normalise
from hybridperf_reference.images.classifier import ImagesInMemory

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["SmallImages"]


class SmallImages(ImagesInMemory):
    """The objective of the laptop tasks with grayscale images, upscaled to ``size_px``."""

    def __init__(self, task: Task, size_px: int) -> None:
        super().__init__(
            task,
            draw=partial(draw_affine, task=task),
            normalised=partial(normalise, data=task.data, size_px=size_px),
            moved=affine,
        )
