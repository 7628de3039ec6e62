"""The learning rate of every step, as the task's hyperparameters state it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suite.tasks.task import Optimizer

__all__ = ["learning_rate"]


def learning_rate(step: int, steps_per_epoch: float, facts: Optimizer) -> float:
    """Return the learning rate of a step: linear warm-up from zero, then the schedule's decay.

    With t the share of the decay that is done: cosine is half a cosine from ``lr`` to ``end_lr``
    (Loshchilov and Hutter 2017, SGDR without restarts), poly falls as ``(1 - t) ** power``, linear
    as ``1 - t``, constant stays. The decay ends after ``decay_epochs``, counted from the first
    step; the warm-up is that of Goyal et al. 2017.
    """
    warmup = facts.warmup_epochs * steps_per_epoch
    if step + 1 <= warmup:
        return facts.lr * (step + 1) / warmup
    done = max(0.0, step - warmup) / max(1, facts.decay_epochs * steps_per_epoch - warmup)
    return facts.end_lr + (facts.lr - facts.end_lr) * _left(min(done, 1.0), facts)


def _left(done: float, facts: Optimizer) -> float:
    """Return the share of the way down to ``end_lr`` that is left."""
    if facts.schedule == "cosine":
        return (1 + math.cos(math.pi * done)) / 2
    if facts.schedule == "constant":
        return 1.0
    return float((1 - done) ** (facts.power if facts.schedule == "poly" else 1))
