"""Hyperparameters under the names that MLPerf's logs give them, which differ by optimiser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.logs import keys

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NAMES", "counted_in_steps", "named_by_mlperf"]

#: our dotted key of each of MLPerf's, whatever the optimiser
NAMES: Final = {
    keys.GLOBAL_BATCH_SIZE: "training.global_batch_size",
    keys.OPT_NAME: "optimizer.name",
    keys.OPT_BASE_LEARNING_RATE: "optimizer.lr",
    keys.OPT_END_LEARNING_RATE: "optimizer.end_lr",
    keys.OPT_MOMENTUM: "optimizer.momentum",
    keys.OPT_WEIGHT_DECAY: "optimizer.weight_decay",
    keys.OPT_WARMUP_EPOCHS: "optimizer.warmup_epochs",
}
#: and those that MLPerf's ResNet logs carry for lars, and its BERT logs for lamb
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
_MOST: Final = 10**12  #: epochs; more is no count


def named_by_mlperf(table: Mapping[str, object]) -> dict[str, object]:
    """Return what ``table`` holds by dotted key, by MLPerf's; the power only where there is one."""
    optimizer, schedule = str(table.get("optimizer.name")), table.get("optimizer.schedule")
    names = NAMES | _OWN_NAMES.get(optimizer, {})
    named = {key: table.get(name) for key, name in names.items()}
    if optimizer in _POWERS and schedule in ("poly", "linear"):
        named[_POWERS[optimizer]] = table.get("optimizer.power") if schedule == "poly" else 1.0
    if optimizer == "lamb":
        named[keys.LAMB_FIRST_WARMUP_STEP] = 0
    return named


def counted_in_steps(table: Mapping[str, object], steps_per_epoch: float) -> dict[str, int]:
    """Return what MLPerf counts in steps and ``table`` in epochs, where those are a number."""
    own = _OWN_STEPS.get(str(table.get("optimizer.name")), {})
    names = {keys.OPT_DECAY_STEPS: "optimizer.decay_epochs"} | own
    epochs = {key: table.get(name) for key, name in names.items()}
    return {
        key: round(value * steps_per_epoch)
        for key, value in epochs.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
    }
