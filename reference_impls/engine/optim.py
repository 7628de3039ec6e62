"""The optimiser and its learning-rate schedule, as the task's hyperparameters state them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

    from suite.tasks.task import Optimizer

__all__ = ["build_optimizer", "learning_rate"]


def build_optimizer(module: nn.Module, facts: Optimizer) -> torch.optim.Optimizer:
    """Return SGD over ``module``; parameters of one dimension are exempt from weight decay."""
    matrices = [p for p in module.parameters() if p.dim() > 1]
    vectors = [p for p in module.parameters() if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": facts.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=facts.lr,
        momentum=facts.momentum,
        nesterov=facts.nesterov,
        fused=True,
    )


def learning_rate(step: int, steps_per_epoch: int, facts: Optimizer) -> float:
    """Return the learning rate of a step: linear warm-up, then half a cosine to ``end_lr``.

    Loshchilov and Hutter 2017 (SGDR, without restarts), after a warm-up as in Goyal et al. 2017.
    """
    warmup = facts.warmup_epochs * steps_per_epoch
    if step < warmup:
        return facts.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, facts.decay_epochs * steps_per_epoch - warmup)
    return facts.end_lr + (facts.lr - facts.end_lr) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
