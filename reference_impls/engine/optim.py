"""The optimiser, as the task's hyperparameters state it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reference_impls.engine.elementwise import AdamW, Sgd
from reference_impls.engine.lamb import Lamb
from reference_impls.engine.lars import Lars

if TYPE_CHECKING:
    import torch
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
        return AdamW(groups, lr=facts.lr, betas=betas, epsilon=facts.epsilon)
    return Sgd(groups, lr=facts.lr, momentum=facts.momentum, nesterov=facts.nesterov)


def _groups(module: nn.Module, facts: Optimizer) -> list[dict[str, Any]]:
    """Return what decays, and what does not."""
    own = list(module.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p.dim() > 1], "weight_decay": facts.weight_decay},
        {"params": [p for p in own if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
