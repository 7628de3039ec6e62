"""Versions of a stage's weights, for passes that compute with older ones than the newest."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import (
    Tensor,
    _foreach_copy_,  # one kernel for many tensors has no public name
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

__all__ = ["WeightVersions"]


class WeightVersions:
    """The versions of the trainable parameters of ``stage`` that passes may still compute with.

    A version is published without a copy: its tensors share the storage of the parameters. The next
    update has to write elsewhere only while the version is needed, so with staleness d there are
    at most d + 1 copies of the weights. Buffers have no versions.

    ``on_gradient``, if any, is called with a parameter's index when a backward pass has accumulated
    the gradient of one of its versions.
    """

    def __init__(self, stage: nn.Module, on_gradient: Callable[[int], None] | None) -> None:
        named = {name: p for name, p in stage.named_parameters() if p.requires_grad}
        self.names, self.parameters = tuple(named), tuple(named.values())
        numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self._places = [
            (module._parameters, name, numbers[id(parameter)])  # noqa: SLF001 - swapped, not copied
            for module in stage.modules()
            for name, parameter in module._parameters.items()  # noqa: SLF001
            if id(parameter) in numbers
        ]
        self._on_gradient = on_gradient
        # Each copy of the weights is a list of leaves of the graph, whose storage the parameters
        # have in turn; a leaf has a version counter of its own.
        self._alive: dict[int, list[Tensor]] = {}
        self._unused: list[list[Tensor]] = []  # of retired versions
        self._newest, self._current = 0, list[Tensor]()  # the version and its copy
        self._installed: object = self.parameters

    def alive(self) -> list[int]:
        """Return the versions that are not retired, oldest first."""
        return sorted(self._alive)

    def weights(self, version: int) -> list[Tensor]:
        """Return the weights [...] of ``version``, which gradients accumulate in, by parameter."""
        return self._alive[version]

    def publish(self, version: int) -> None:
        """Make the parameters' present values available as ``version``."""
        self._newest = version
        self._alive[version] = self._current

    def restore(self, newest: int, older: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Discard all versions; publish the parameters as ``newest``, and the ``older`` by name."""
        self._alive.clear()
        self._unused.clear()
        for version, weights in older.items():
            self._alive[version] = self._leaves([weights[name].clone() for name in self.names])
        self._current = self._leaves([parameter.data for parameter in self.parameters])
        self.publish(newest)

    def retire(self, version: int) -> None:
        """Discard ``version``, and keep its storage for a later update."""
        weights = self._alive.pop(version)
        if version != self._newest:
            self._unused.append(weights)

    def before_update(self) -> None:
        """Give the parameters storage that no version shares, with the same values."""
        if self._newest not in self._alive:
            return
        present = [parameter.data for parameter in self.parameters]
        if not self._unused:
            self._unused.append(self._leaves([torch.empty_like(each) for each in present]))
        self._current = self._unused.pop()
        storage = [leaf.data for leaf in self._current]
        if storage:
            _foreach_copy_(storage, present)
        for parameter, fresh in zip(self.parameters, storage, strict=True):
            parameter.data = fresh

    def install(self, version: int) -> None:
        """Make the modules compute with ``version`` until another is installed."""
        self._install(self._alive[version])

    def uninstall(self) -> None:
        """Make the modules compute with their own parameters, which have the newest values."""
        self._install(self.parameters)

    def _install(self, weights: list[Tensor] | tuple[nn.Parameter, ...]) -> None:
        if weights is not self._installed:
            for registry, name, number in self._places:
                registry[name] = weights[number]  # type: ignore[assignment]  # as functional_call does
            self._installed = weights

    def _leaves(self, weights: list[Tensor]) -> list[Tensor]:
        """Return ``weights`` [...] as leaves of the graph."""
        for number, weight in enumerate(weights):
            weight.requires_grad_()
            if self._on_gradient is not None:
                weight.register_post_accumulate_grad_hook(partial(self._ready, number))
        return weights

    def _ready(self, number: int, _: Tensor) -> None:
        assert self._on_gradient is not None
        self._on_gradient(number)
