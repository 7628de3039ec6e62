"""LAMB: Adam with a layer-wise trust ratio, for very large batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import (
    _foreach_add_,  # one kernel for many tensors has no public name
    _foreach_addcmul_,
    _foreach_div,
    _foreach_div_,
    _foreach_lerp_,
    _foreach_mul_,
    _foreach_sqrt_,
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

__all__ = ["Lamb"]


class Lamb(torch.optim.Optimizer):
    """Layer-wise adaptive moments (You et al. 2020, algorithm 2), with phi the identity.

    For a layer's weights w and gradient g, its moments m and v, step t, learning rate lr, and
    weight decay d::

        m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g g
        u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + d w
        w = w - lr (|w| / |u|) u                  ratio 1 where |w| or |u| is 0

    Parameters with one dimension or none have ratio 1; their parameter group sets their weight
    decay. Gradients are not clipped here. Parameters may be DTensors: norms are those of whole
    tensors.
    """

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        beta1: float,
        beta2: float,
        epsilon: float,
    ) -> None:
        defaults = {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon}
        super().__init__(parameters, defaults | {"weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        groups = group_updates(self)
        for group in groups:
            self._compute_directions(group)
        for group, (weights, changes) in zip(groups, layer_norms(groups), strict=True):
            known = (weights > 0) & (changes > 0)
            scale_layers(group, torch.where(known, weights / changes, 1.0))
            _foreach_add_(group.weights, group.tensors, alpha=-group.options["lr"])

    def _compute_directions(self, group: GroupUpdate) -> None:
        """Replace the gradients of ``group`` by the update direction u, and advance its moments."""
        options = group.options
        states = [self.state[parameter] for parameter in group.parameters]
        for parameter, state in zip(group.parameters, states, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0)
                state["mean"] = zeros_like(parameter)
                state["square"] = zeros_like(parameter)
            state["step"] += 1
        means = local_parts(state["mean"] for state in states)
        squares = local_parts(state["square"] for state in states)
        steps = [state["step"].item() for state in states]
        _foreach_lerp_(means, group.tensors, 1 - options["beta1"])
        _foreach_mul_(squares, options["beta2"])
        _foreach_addcmul_(squares, group.tensors, group.tensors, 1 - options["beta2"])
        roots = _foreach_div(squares, [1 - options["beta2"] ** step for step in steps])
        _foreach_sqrt_(roots)
        _foreach_add_(roots, options["epsilon"])
        changes = _foreach_div(means, [1 - options["beta1"] ** step for step in steps])
        _foreach_div_(changes, roots)
        _foreach_add_(changes, group.weights, alpha=options["weight_decay"])
        group.tensors = list(changes)
