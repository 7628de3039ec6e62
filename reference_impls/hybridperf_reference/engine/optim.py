"""Build the optimizer that a task's hyperparameters describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridperf_reference.engine.elementwise import AdamW, Sgd
from hybridperf_reference.engine.lamb import Lamb
from hybridperf_reference.engine.lars import Lars

if TYPE_CHECKING:
    import torch
    from torch import nn

    from hybridperf.tasks.task import Optimizer

__all__ = ["build_optimizer"]


def build_optimizer(module: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that ``config`` describes, over the parameters of ``module``.

    SGD is that of Sutskever et al. (2013) with weight decay added to the gradient, AdamW that of
    Loshchilov and Hutter (2019), LARS that of You et al. (2017) and LAMB that of You et al. (2020).
    Parameters with one dimension or none are exempt from weight decay, and from the layer-wise
    rates of LARS and LAMB.
    """
    groups = _groups(module, config)
    if config.name == "lars":
        return Lars(
            groups,
            lr=config.lr,
            momentum=config.momentum,
            nesterov=config.nesterov,
            trust_coefficient=config.trust_coefficient,
            epsilon=config.epsilon,
        )
    betas = config.beta1, config.beta2
    if config.name == "lamb":
        return Lamb(groups, lr=config.lr, beta1=betas[0], beta2=betas[1], epsilon=config.epsilon)
    if config.name == "adamw":
        return AdamW(groups, lr=config.lr, betas=betas, epsilon=config.epsilon)
    return Sgd(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)


def _groups(module: nn.Module, config: Optimizer) -> list[dict[str, Any]]:
    """Return the parameter groups with and without weight decay."""
    own = list(module.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in own if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]] or groups[:1]  # torch needs one group
