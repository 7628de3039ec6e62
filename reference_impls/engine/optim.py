"""The optimiser, as the task's hyperparameters state it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from reference_impls.engine.lamb import Lamb
from reference_impls.engine.lars import Lars
from reference_impls.engine.norms import is_spread

if TYPE_CHECKING:
    from torch import nn

    from suite.tasks.task import Optimizer

__all__ = ["build_optimizer"]


def build_optimizer(module: nn.Module, facts: Optimizer) -> torch.optim.Optimizer:
    """Return the optimiser that ``facts`` name, over the parameters of ``module``.

    SGD is that of Sutskever et al. 2013 with decay added to the gradient, AdamW that of Loshchilov
    and Hutter 2019, LARS and LAMB those of You et al. Parameters of one dimension are exempt from
    weight decay, and from the layer-wise rates of LARS and LAMB.
    """
    groups = _groups(module, facts)
    if facts.name == "lars":
        return Lars(
            groups,
            lr=facts.lr,
            momentum=facts.momentum,
            nesterov=facts.nesterov,
            trust_coefficient=facts.trust_coefficient,
            epsilon=facts.epsilon,
        )
    betas = facts.beta1, facts.beta2
    if facts.name == "lamb":
        return Lamb(groups, lr=facts.lr, beta1=betas[0], beta2=betas[1], epsilon=facts.epsilon)
    if facts.name == "adamw":
        return torch.optim.AdamW(groups, lr=facts.lr, betas=betas, eps=facts.epsilon, fused=True)
    # torch has no fused SGD of DTensors.
    spread = any(is_spread(parameter) for parameter in module.parameters())
    return torch.optim.SGD(
        groups,
        lr=facts.lr,
        momentum=facts.momentum,
        nesterov=facts.nesterov,
        fused=not spread,
        foreach=spread,
    )


def _groups(module: nn.Module, facts: Optimizer) -> list[dict[str, Any]]:
    """Return what decays and what does not, apart by how it is spread: torch mixes none of it."""
    groups: dict[tuple[object, bool], dict[str, Any]] = {}
    for decays in (True, False):
        for parameter in module.parameters():
            if (parameter.dim() > 1) is decays:
                mesh = parameter.device_mesh if is_spread(parameter) else None
                decay = facts.weight_decay if decays else 0.0
                group = groups.setdefault((mesh, decays), {"params": [], "weight_decay": decay})
                group["params"].append(parameter)
    return list(groups.values())
