"""A model as a chain of units, and what it is trained for; nothing about parallelism."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor, nn

    from suite.tasks.data import Samples

__all__ = ["Chain", "Objective", "Split", "Unit"]

Split = Literal["column", "row"]  #: of a linear's weight: by its outputs, or by its inputs


@dataclass(frozen=True, slots=True)
class Unit:
    """The smallest part of a model that a stage boundary may fall next to."""

    name: str  #: prefix of its parameters' global names
    module: nn.Module  #: takes one tensor, batch first, and returns one; changes none in place
    split: Mapping[str, Split] = field(default_factory=dict)
    #: the linears that tensor parallelism may split, by their names inside ``module``


class Objective(Protocol):
    """What a chain learns: how samples become inputs and targets, and which answers are right.

    Whatever is random is drawn by seed, epoch and sample alone, so that every plan sees the same.
    """

    @property
    def reads_ahead(self) -> bool:
        """Return whether reading takes so long that other processes should do it ahead."""

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return the training samples at ``indices``, batch first, on the host."""

    def prepare(self, *stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, batch first, from what `read` returned, on its device."""

    def evaluation(self, stored: Any) -> Tensor:
        """Return the first unit's inputs, on the host, from a slice of evaluation inputs."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss: over parts of a batch of one size it averages to the whole's."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return classes in the shape of the evaluation labels, of which each one counts."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A model as its ordered units."""

    units: tuple[Unit, ...]
    objective: Objective
    example: Callable[[int], tuple[Tensor, Tensor]]  #: batch size -> synthetic inputs and targets

    def parameter_names(self) -> list[str]:
        """Return the global names of all parameters, in order."""
        return [
            f"{unit.name}.{name}"
            for unit in self.units
            for name, _ in unit.module.named_parameters()
        ]

    def shadow(self) -> list[nn.Module]:
        """Return the units without weights, on the device meta: shapes and no computation."""
        return [copy.deepcopy(unit.module).to("meta").eval() for unit in self.units]

    def boundaries(self) -> list[Tensor]:
        """Return one sample before each unit, and after the last, on the device meta."""
        outputs = self.example(1)[0].to("meta")
        samples = [outputs[0]]
        with torch.no_grad():
            for module in self.shadow():
                outputs = module(outputs)
                samples.append(outputs[0])
        return samples
