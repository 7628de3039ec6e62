"""Map hyperparameters to MLPerf's log keys, which depend on the optimiser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.untrusted import COUNT_CAP, number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAMES", "counted_in_steps", "named_by_mlperf"]

#: MLPerf key -> this suite's dotted key, for all optimisers
NAMES: Final = {
    keys.GLOBAL_BATCH_SIZE: "training.global_batch_size",
    keys.OPT_NAME: "optimizer.name",
    keys.OPT_BASE_LEARNING_RATE: "optimizer.lr",
    keys.OPT_END_LEARNING_RATE: "optimizer.end_lr",
    keys.OPT_MOMENTUM: "optimizer.momentum",
    keys.OPT_WEIGHT_DECAY: "optimizer.weight_decay",
    keys.OPT_WARMUP_EPOCHS: "optimizer.warmup_epochs",
}
#: optimiser -> additional keys, as in MLPerf's ResNet (lars) and BERT (lamb) logs
_OWN_NAMES: Final = {
    "lars": {
        keys.LARS_BASE_LEARNING_RATE: "optimizer.lr",
        keys.LARS_END_LEARNING_RATE: "optimizer.end_lr",
        keys.LARS_MOMENTUM: "optimizer.momentum",
        keys.LARS_WEIGHT_DECAY: "optimizer.weight_decay",
        keys.LARS_EPSILON: "optimizer.epsilon",
        keys.LARS_WARMUP_EPOCHS: "optimizer.warmup_epochs",
    },
    "lamb": {
        keys.LAMB_BETA_1: "optimizer.beta1",
        keys.LAMB_BETA_2: "optimizer.beta2",
        keys.LAMB_EPSILON: "optimizer.epsilon",
        keys.LAMB_WEIGHT_DECAY: "optimizer.weight_decay",
    },
}
_POWERS: Final = {"lars": keys.LARS_POWER, "lamb": keys.LAMB_POWER}
_OWN_STEPS: Final = {
    "lars": {keys.LARS_DECAY_STEPS: "optimizer.decay_epochs"},
    "lamb": {
        keys.LAMB_TRAINING_STEPS: "optimizer.decay_epochs",
        keys.LAMB_WARMUP_STEPS: "optimizer.warmup_epochs",
        keys.LAMB_WARMUP_STEPS_AGAIN: "optimizer.warmup_epochs",
    },
}


def named_by_mlperf(table: Mapping[str, object]) -> dict[str, object]:
    """Return the hyperparameters in ``table`` (dotted key -> value) by MLPerf log key.

    The decay power is included only for polynomial and linear schedules.
    """
    optimizer, schedule = str(table.get("optimizer.name")), table.get("optimizer.schedule")
    names = NAMES | _OWN_NAMES.get(optimizer, {})
    named = {key: table.get(name) for key, name in names.items()}
    if optimizer in _POWERS and schedule in ("poly", "linear"):
        named[_POWERS[optimizer]] = table.get("optimizer.power") if schedule == "poly" else 1.0
    if optimizer == "lamb":
        named[keys.LAMB_FIRST_WARMUP_STEP] = 0
    return named


def counted_in_steps(table: Mapping[str, object], steps_per_epoch: float) -> dict[str, int]:
    """Return the durations in ``table`` that MLPerf logs in optimiser steps, by MLPerf log key.

    ``table`` maps dotted keys to values, with durations in epochs.
    """
    own = _OWN_STEPS.get(str(table.get("optimizer.name")), {})
    names = {keys.OPT_DECAY_STEPS: "optimizer.decay_epochs"} | own
    epochs = {key: table.get(name) for key, name in names.items()}
    return {
        key: round(count * steps_per_epoch)
        for key, value in epochs.items()
        if (count := number(value, 0, COUNT_CAP)) is not None
    }
