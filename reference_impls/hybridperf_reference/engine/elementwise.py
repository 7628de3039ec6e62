"""SGD and AdamW through torch's fused kernels, on the local shard of each parameter.

Both are elementwise, so shards are updated independently. Updating DTensors directly gives the same
result, but torch then derives a sharding for each operation, which takes seconds in the first step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from hybridperf_reference.engine.layerwise import group_updates
from hybridperf_reference.engine.norms import local_parts, zeros_like

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

__all__ = ["AdamW", "Sgd"]


class Sgd(torch.optim.Optimizer):
    """SGD with momentum (Sutskever et al. 2013); weight decay is added to the gradient."""

    def __init__(
        self, parameters: Iterable[dict[str, Any]], *, lr: float, momentum: float, nesterov: bool
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        for group in group_updates(self):
            options = group.options
            momenta: list[Tensor | None] = [None] * len(group.parameters)
            if options["momentum"]:
                momenta = [*local_parts(map(self._momentum, group.parameters))]
            sgd(
                group.weights,
                group.tensors,
                momenta,
                fused=True,
                lr=options["lr"],
                momentum=options["momentum"],
                dampening=0.0,
                nesterov=options["nesterov"],
                weight_decay=options["weight_decay"],
                maximize=False,
            )

    def _momentum(self, parameter: nn.Parameter) -> Tensor:
        """Return the momentum buffer of ``parameter``, in its shape and sharding."""
        state = self.state[parameter]
        if not state:
            state["momentum_buffer"] = zeros_like(parameter)
        momentum: Tensor = state["momentum_buffer"]
        return momentum


class AdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2)."""

    def __init__(
        self,
        parameters: Iterable[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        epsilon: float,
    ) -> None:
        # With `fused`, load_state_dict moves `step` to the parameter's device, as the kernel needs.
        fused = {"fused": True}
        super().__init__(parameters, {"lr": lr, "betas": betas, "epsilon": epsilon} | fused)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002 - no closures are used
        """Update every parameter that has a gradient."""
        for group in group_updates(self):
            options = group.options
            states = [self.state[p] or self._begin(p) for p in group.parameters]
            beta1, beta2 = options["betas"]
            adamw(
                group.weights,
                group.tensors,
                local_parts([state["exp_avg"] for state in states]),
                local_parts([state["exp_avg_sq"] for state in states]),
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=options["lr"],
                weight_decay=options["weight_decay"],
                eps=options["epsilon"],
                maximize=False,
            )

    def _begin(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return the new state of ``parameter``, in its shape and sharding."""
        state: dict[str, Tensor] = self.state[parameter]
        state["step"] = torch.zeros((), device=parameter.device)
        state["exp_avg"] = zeros_like(parameter)
        state["exp_avg_sq"] = zeros_like(parameter)
        return state
