"""A model as a chain of units: where a pipeline may be cut, and nothing about parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

__all__ = ["Augment", "Chain", "Unit"]


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest part of a model that a stage boundary may fall next to."""

    name: str  #: prefix of its parameters' global names
    module: nn.Module  #: takes one tensor, batch first, and returns one; changes none in place


@dataclass(frozen=True, slots=True)
class Augment:
    """Random changes to training images, drawn for each sample by seed and epoch alone."""

    draw: Callable[
        [int, int, int], NDArray[np.float32]
    ]  #: (seed, epoch, samples) -> [sample, number]
    apply: Callable[[Tensor, Tensor], Tensor]  #: (prepared inputs, their numbers) -> inputs


@dataclass(frozen=True, slots=True)
class Chain:
    """A model as its ordered units."""

    units: tuple[Unit, ...]
    prepare: Callable[[Tensor], Tensor]  #: stored samples -> the first unit's inputs
    augment: Augment
    example_shape: tuple[int, ...]  #: of one prepared input
    classes: int

    def example(self, batch: int) -> Tensor:
        """Return ``batch`` synthetic prepared inputs."""
        return torch.randn(batch, *self.example_shape)

    def parameter_names(self) -> list[str]:
        """Return the global names of all parameters, in order."""
        return [
            f"{unit.name}.{name}"
            for unit in self.units
            for name, _ in unit.module.named_parameters()
        ]

    def boundary_shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of one sample before each unit, and after the last."""
        outputs = self.example(2)
        shapes = [self.example_shape]
        for unit in self.units:
            was_training = unit.module.training
            with torch.no_grad():
                outputs = unit.module.eval()(outputs)
            unit.module.train(was_training)
            shapes.append(tuple(outputs.shape[1:]))
        return shapes
