"""LARS: SGD with momentum and a layer-wise learning rate, for very large batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import (
    _foreach_add,  # one kernel for many tensors has no public name
    _foreach_add_,
    _foreach_mul_,
)

from hybridperf_reference.engine.layerwise import (
    GroupUpdate,
    group_updates,
    layer_norms,
    scale_layers,
)
from hybridperf_reference.engine.norms import local_parts, zeros_like

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Lars"]


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You et al. 2017, algorithm 1), as in MLPerf's ResNet.

    For a layer's weights w and gradient g, its velocity v, learning rate lr, momentum m, weight
    decay d and trust coefficient c::

        rate = c |w| / (|g| + d |w| + epsilon)    1 where |w| or |g| is 0
        v = m v + lr rate (g + d w)
        w = w - v                                 nesterov: w - (m v + lr rate (g + d w))

    Parameters with one dimension or none have rate 1; their parameter group sets their weight
    decay. Parameters may be DTensors: norms are those of whole tensors.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        nesterov: bool,
        trust_coefficient: float,
        epsilon: float,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.0}
        own = {"trust_coefficient": trust_coefficient, "epsilon": epsilon}
        super().__init__(parameters, defaults | own)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        groups = group_updates(self)
        for group, (weights, gradients) in zip(groups, layer_norms(groups), strict=True):
            options = group.options
            rates = weights / (gradients + options["weight_decay"] * weights + options["epsilon"])
            known = (weights > 0) & (gradients > 0)
            group.tensors = list(
                _foreach_add(group.tensors, group.weights, alpha=options["weight_decay"])
            )
            scale_layers(group, torch.where(known, options["trust_coefficient"] * rates, 1.0))
            self._apply_momentum(group)

    def _apply_momentum(self, group: GroupUpdate) -> None:
        """Update velocities and weights of ``group`` from its scaled gradients."""
        options = group.options
        for parameter in group.parameters:
            if not self.state[parameter]:
                self.state[parameter]["velocity"] = zeros_like(parameter)
        velocities = local_parts(self.state[p]["velocity"] for p in group.parameters)
        _foreach_mul_(velocities, options["momentum"])
        _foreach_add_(velocities, group.tensors, alpha=options["lr"])
        if options["nesterov"]:
            _foreach_add_(group.weights, group.tensors, alpha=-options["lr"])
        _foreach_add_(
            group.weights, velocities, alpha=-options["momentum"] if options["nesterov"] else -1.0
        )
