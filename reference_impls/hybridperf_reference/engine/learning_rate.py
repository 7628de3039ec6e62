"""The learning-rate schedule of a task: linear warm-up, then decay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridperf.tasks.task import Optimizer

__all__ = ["learning_rate"]


def learning_rate(step: int, steps_per_epoch: float, config: Optimizer) -> float:
    """Return the learning rate of ``step``, counted from 0.

    Warm-up is linear from zero (Goyal et al. 2017). With t the completed share of the decay, cosine
    is half a period from ``lr`` to ``end_lr`` (Loshchilov and Hutter 2017, SGDR without restarts),
    poly follows ``(1 - t) ** power``, linear ``1 - t``, and constant stays at ``lr``. The decay
    ends after ``decay_epochs``, counted from step 0.
    """
    warmup = config.warmup_epochs * steps_per_epoch
    if step + 1 <= warmup:
        return config.lr * (step + 1) / warmup
    done = max(0.0, step - warmup) / max(1, config.decay_epochs * steps_per_epoch - warmup)
    return config.end_lr + (config.lr - config.end_lr) * _remaining(min(done, 1.0), config)


def _remaining(done: float, config: Optimizer) -> float:
    """Return the remaining share of the decay to ``end_lr``, given the completed share ``done``."""
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    if config.schedule == "constant":
        return 1.0
    return float((1 - done) ** (config.power if config.schedule == "poly" else 1))
