"""Define log keys: MLPerf's, with MLPerf's meaning, and this suite's, prefixed by hybridperf.

MLPerf's keys of hyperparameters depend on the optimiser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "HYPERPARAMETER_NAMES",
    "counted_in_steps",
    "named_by_mlperf",
    "progress_of",
    "progress_text",
]

SUBMISSION_BENCHMARK: Final = "submission_benchmark"
SUBMISSION_ORG: Final = "submission_org"
SUBMISSION_DIVISION: Final = "submission_division"
SUBMISSION_STATUS: Final = "submission_status"
SUBMISSION_PLATFORM: Final = "submission_platform"
CACHE_CLEAR: Final = "cache_clear"
INIT_START: Final = "init_start"
INIT_STOP: Final = "init_stop"
RUN_START: Final = "run_start"
RUN_STOP: Final = "run_stop"
BLOCK_START: Final = "block_start"
BLOCK_STOP: Final = "block_stop"
EVAL_START: Final = "eval_start"
EVAL_STOP: Final = "eval_stop"
EVAL_ACCURACY: Final = "eval_accuracy"
SEED: Final = "seed"
GLOBAL_BATCH_SIZE: Final = "global_batch_size"
GRADIENT_ACCUMULATION_STEPS: Final = "gradient_accumulation_steps"
TRAIN_SAMPLES: Final = "train_samples"
EVAL_SAMPLES: Final = "eval_samples"
OPT_NAME: Final = "opt_name"
OPT_BASE_LEARNING_RATE: Final = "opt_base_learning_rate"
OPT_END_LEARNING_RATE: Final = "opt_end_learning_rate"
OPT_MOMENTUM: Final = "opt_momentum"
OPT_WEIGHT_DECAY: Final = "opt_weight_decay"
OPT_WARMUP_EPOCHS: Final = "opt_learning_rate_warmup_epochs"
OPT_DECAY_STEPS: Final = "opt_learning_rate_decay_steps"
LARS_BASE_LEARNING_RATE: Final = "lars_opt_base_learning_rate"
LARS_END_LEARNING_RATE: Final = "lars_opt_end_learning_rate"
LARS_POWER: Final = "lars_opt_learning_rate_decay_poly_power"
LARS_DECAY_STEPS: Final = "lars_opt_learning_rate_decay_steps"
LARS_WARMUP_EPOCHS: Final = "lars_opt_learning_rate_warmup_epochs"
LARS_MOMENTUM: Final = "lars_opt_momentum"
LARS_WEIGHT_DECAY: Final = "lars_opt_weight_decay"
LARS_EPSILON: Final = "lars_epsilon"
LAMB_BETA_1: Final = "opt_lamb_beta_1"
LAMB_BETA_2: Final = "opt_lamb_beta_2"
LAMB_EPSILON: Final = "opt_epsilon"  #: the name in rounds v2.0 and v2.1
LAMB_WEIGHT_DECAY: Final = "opt_lamb_weight_decay_rate"
LAMB_POWER: Final = "opt_lamb_learning_rate_decay_poly_power"
LAMB_TRAINING_STEPS: Final = "opt_learning_rate_training_steps"
LAMB_WARMUP_STEPS: Final = "opt_learning_rate_warmup_steps"
LAMB_WARMUP_STEPS_AGAIN: Final = "num_warmup_steps"  #: MLPerf logs contain both
LAMB_FIRST_WARMUP_STEP: Final = "start_warmup_step"
WEIGHTS_INITIALIZATION: Final = "weights_initialization"
MODEL_BN_SPAN: Final = "model_bn_span"
TRACKED_STATS: Final = "tracked_stats"
#: limit on the actions of a timeline, since a line of the log is of limited length
TIMELINE_CAP: Final = 600

#: number of the attempt, last hash of the attempt before, commitment to all seeds, link of its seed
ATTEMPT: Final = "hybridperf_attempt"
PLAN: Final = "hybridperf_plan"  #: the parallel plan's canonical text
TASK: Final = "hybridperf_task"  #: name, version and SHA-256 of the task
MODE: Final = "hybridperf_mode"  #: whether the data set is within the trainer's reach
NOISE: Final = "hybridperf_noise"  #: use of the machine by others, before launch or in the run
ENERGY: Final = "hybridperf_energy"  #: joules by source and device of a block, and what is missing
SANDBOX: Final = "hybridperf_sandbox"  #: kind and version of the sandbox of ranks
HYPERPARAMETERS: Final = "hybridperf_hyperparameters"  #: all, by dotted key
FLOAT32_MATH: Final = "hybridperf_float32_math"  #: whether float32 matmuls use TF32
PARTITION: Final = "hybridperf_partition"  #: per stage: unit names and FLOPs
PROJECTION: Final = "hybridperf_projection"  #: projected step: seconds by rank, timeline, source
#: handed over at an evaluation, before its verdict: by how many ranks, and how many bytes
WEIGHTS: Final = "hybridperf_weights"
CHECKPOINT: Final = "hybridperf_checkpoint"  #: seconds taken to save it, and its step
#: file, SHA-256 and quality of the weights that the run begins from, where they are given
INITIAL: Final = "hybridperf_initial"
RESUMED: Final = "hybridperf_resumed"  #: a further segment: its plan, its first step, what was lost
ENDING: Final = "hybridperf_ending"  #: why the harness ended the run

#: MLPerf key -> this suite's dotted key, for all optimisers
HYPERPARAMETER_NAMES: Final = {
    GLOBAL_BATCH_SIZE: "training.global_batch_size",
    OPT_NAME: "optimizer.name",
    OPT_BASE_LEARNING_RATE: "optimizer.lr",
    OPT_END_LEARNING_RATE: "optimizer.end_lr",
    OPT_MOMENTUM: "optimizer.momentum",
    OPT_WEIGHT_DECAY: "optimizer.weight_decay",
    OPT_WARMUP_EPOCHS: "optimizer.warmup_epochs",
}
#: optimiser -> additional keys, as in MLPerf's ResNet (lars) and BERT (lamb) logs
_OWN_NAMES: Final = {
    "lars": {
        LARS_BASE_LEARNING_RATE: "optimizer.lr",
        LARS_END_LEARNING_RATE: "optimizer.end_lr",
        LARS_MOMENTUM: "optimizer.momentum",
        LARS_WEIGHT_DECAY: "optimizer.weight_decay",
        LARS_EPSILON: "optimizer.epsilon",
        LARS_WARMUP_EPOCHS: "optimizer.warmup_epochs",
    },
    "lamb": {
        LAMB_BETA_1: "optimizer.beta1",
        LAMB_BETA_2: "optimizer.beta2",
        LAMB_EPSILON: "optimizer.epsilon",
        LAMB_WEIGHT_DECAY: "optimizer.weight_decay",
    },
}
_POWERS: Final = {"lars": LARS_POWER, "lamb": LAMB_POWER}
#: optimiser -> keys of durations in steps -> the suite's keys without ``_steps`` or ``_epochs``
_OWN_STEPS: Final = {
    "lars": {LARS_DECAY_STEPS: "optimizer.decay"},
    "lamb": {
        LAMB_TRAINING_STEPS: "optimizer.decay",
        LAMB_WARMUP_STEPS: "optimizer.warmup",
        LAMB_WARMUP_STEPS_AGAIN: "optimizer.warmup",
    },
}


def named_by_mlperf(table: Mapping[str, object]) -> dict[str, object]:
    """Return the hyperparameters in ``table`` (dotted key -> value) by MLPerf log key.

    The decay power is included only for polynomial and linear schedules, a warm-up in epochs only
    where it is not stated in steps.
    """
    optimizer, schedule = str(table.get("optimizer.name")), table.get("optimizer.schedule")
    names = HYPERPARAMETER_NAMES | _OWN_NAMES.get(optimizer, {})
    if number(table.get("optimizer.warmup_steps"), 1, COUNT_CAP) is not None:
        names = {key: name for key, name in names.items() if name != "optimizer.warmup_epochs"}
    named = {key: table.get(name) for key, name in names.items()}
    if optimizer in _POWERS and schedule in ("poly", "linear"):
        named[_POWERS[optimizer]] = table.get("optimizer.power") if schedule == "poly" else 1.0
    if optimizer == "lamb":
        named[LAMB_FIRST_WARMUP_STEP] = table.get("optimizer.start_warmup_step", 0)
    return named


def counted_in_steps(table: Mapping[str, object], steps_per_epoch: float) -> dict[str, int]:
    """Return the durations in ``table`` that MLPerf logs in optimiser steps, by MLPerf log key.

    ``table`` maps dotted keys to values, with durations in epochs or in steps.
    """
    own = _OWN_STEPS.get(str(table.get("optimizer.name")), {})
    steps = {}
    for key, name in ({OPT_DECAY_STEPS: "optimizer.decay"} | own).items():
        stated = number(table.get(f"{name}_steps"), 1, COUNT_CAP)
        epochs = number(table.get(f"{name}_epochs"), 0, COUNT_CAP)
        if stated is not None:
            steps[key] = round(stated)
        elif epochs is not None:
            steps[key] = round(epochs * steps_per_epoch)
    return steps


def progress_of(metadata: Mapping[str, object]) -> int | None:
    """Return the last epoch, or the number of samples, of training that ``metadata`` states."""
    return whole(metadata.get("samples_count", metadata.get("epoch_num")), 0)


def progress_text(metadata: Mapping[str, object]) -> str:
    """Return the progress that ``metadata`` states in words, such as ``epoch 8``."""
    if "samples_count" in metadata:
        return f"{metadata['samples_count']!r:.20} samples"
    return f"epoch {metadata.get('epoch_num')!r:.20}"
