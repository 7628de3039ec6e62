"""Versions of a stage's weights, for passes that compute with older ones than the newest."""

from __future__ import annotations

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

    ``on_gradient`` is called with a parameter's index when a backward pass has accumulated the
    gradient of one of its versions.
    """

    def __init__(self, stage: nn.Module, on_gradient: Callable[[int], None]) -> None:
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
        self._alive: dict[int, list[Tensor]] = {}
        self._unused: list[list[Tensor]] = []  # storage of retired versions
        self._newest = 0
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
        self._keep(version, [parameter.data for parameter in self.parameters])

    def restore(self, newest: int, older: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Discard all versions; publish the parameters as ``newest``, and the ``older`` by name."""
        self._alive.clear()
        for version, weights in older.items():
            self._keep(version, [weights[name].clone() for name in self.names])
        self.publish(newest)

    def retire(self, version: int) -> None:
        """Discard ``version``, and keep its storage for a later update."""
        weights = self._alive.pop(version)
        if version != self._newest:
            self._unused.append([weight.detach() for weight in weights])

    def before_update(self) -> None:
        """Give the parameters storage that no version shares, with the same values."""
        if self._newest not in self._alive:
            return
        if self._unused:
            fresh = self._unused.pop()
        else:
            fresh = [torch.empty_like(parameter.data) for parameter in self.parameters]
        if fresh:
            _foreach_copy_(fresh, [parameter.data for parameter in self.parameters])
        for parameter, storage in zip(self.parameters, fresh, strict=True):
            parameter.data = storage

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

    def _keep(self, version: int, weights: list[Tensor]) -> None:
        """Keep ``weights`` as leaves of the graph, each with a version counter of its own."""
        for number, weight in enumerate(weights):
            weight.requires_grad_().register_post_accumulate_grad_hook(
                lambda _, number=number: self._on_gradient(number)
            )
        self._alive[version] = weights
