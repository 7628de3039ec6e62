"""The schema of a task: model, data, quality target, limits and hyperparameters, with bounds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.plan import TrainingConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "Block",
    "Bound",
    "Data",
    "Decay",
    "Division",
    "EvaluationSchedule",
    "Initial",
    "Limits",
    "Optimizer",
    "OptimizerName",
    "Parallel",
    "ReferenceRuns",
    "Task",
    "Text",
    "Training",
    "WeightFormat",
    "out_of_bounds",
]

Division = Literal["closed", "open"]
OptimizerName = Literal["sgd", "adamw", "lars", "lamb"]
Decay = Literal["cosine", "poly", "linear", "constant"]
WeightFormat = Literal["safetensors", "torchvision", "transformers"]  # safetensors: our names
ScheduleUnit = Literal["epochs", "samples"]
_PROGRESS: Final[dict[ScheduleUnit, str]] = {"epochs": "epoch_num", "samples": "samples_count"}


@dataclass(frozen=True, slots=True)
class Block:
    """A block: the training between two evaluations (MLPerf's term), in epochs or in samples."""

    first: int  #: number of the first epoch or sample, counted from 1
    count: int  #: number of epochs or samples
    unit: ScheduleUnit = "epochs"

    @property
    def last(self) -> int:
        """Return the last epoch or sample of the block, after which the model is evaluated."""
        return self.first + self.count - 1

    def start_metadata(self) -> dict[str, int]:
        """Return the metadata of the log's block_start, with the keys of MLPerf."""
        if self.unit == "samples":
            return {"samples_count": self.first - 1}
        return {"first_epoch_num": self.first, "epoch_count": self.count}

    def stop_metadata(self) -> dict[str, int]:
        """Return the metadata that names the block in the log's block_stop."""
        return self.metadata() if self.unit == "samples" else {"first_epoch_num": self.first}

    def metadata(self) -> dict[str, int]:
        """Return the metadata of the evaluation after the block and of the block's statistics."""
        return {_PROGRESS[self.unit]: self.last}


@dataclass(frozen=True, slots=True)
class Text:
    """Sampling of text; values repeated in ``[model]`` must be equal."""

    tokens: int  #: tokens per sample, including the class token and two separators
    masked: int  #: tokens per sample to predict
    vocabulary: int  #: number of entries of the vocabulary
    vocabulary_sha256: str  #: SHA-256 of the file vocab.txt

    @property
    def window(self) -> int:
        """Return the number of tokens without the class token and the two separators."""
        return self.tokens - 3


@dataclass(frozen=True, slots=True)
class Data:
    """The samples of a task, their source and their split."""

    name: str  #: name of a loader in `hybridperf.tasks.data`
    source: str  #: name of the source, for messages
    sha256: str  #: SHA-256 of the decompressed source, or the checksum that its loader defines
    split: str  #: the published rule that divides training from evaluation samples
    train_samples: int
    eval_samples: int
    mean: float = 0.0  #: mean of the training images, for normalisation
    std: float = 1.0
    channel_means: tuple[float, ...] = ()  #: means of red, green and blue, for colour images
    channel_stds: tuple[float, ...] = ()
    editions: dict[str, str] | None = None
    #: SHA-256 of known editions by name; if given, unknown editions are accepted too, and results
    #: of different editions are not compared
    text: Text | None = None
    filled: bool = True
    #: whether every sample of text has all tokens; if not, samples are pieces of the text


@dataclass(frozen=True, slots=True)
class Quality:
    """The metric, its target, and the reason for the target."""

    metric: str
    target: float  #: a fraction
    reason: str
    rescoring_tolerance: float  #: largest difference between reported and rescored quality


@dataclass(frozen=True, slots=True)
class EvaluationSchedule:
    """The evaluation schedule; evaluations count towards the time to train."""

    first_epoch: int = 0  #: first epoch with an evaluation after it
    every_epochs: int = 0  #: epochs from one evaluation to the next
    every_samples: int = 0
    #: samples up to the first evaluation and from one to the next, instead of epochs; 0: epochs
    checkpoint: bool = False  #: save a checkpoint at each evaluation, for runs to resume from

    @property
    def unit(self) -> ScheduleUnit:
        """Return the unit in which the schedule counts."""
        return "samples" if self.every_samples else "epochs"

    def metadata(self, progress: int) -> dict[str, int]:
        """Return the metadata of the evaluation after ``progress`` epochs or samples."""
        return {_PROGRESS[self.unit]: progress}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits after which the harness ends a run."""

    epochs: int  #: most epochs; then the run stops with status aborted
    initialisation_s: float  #: limit from launch to run_start
    run_s: float  #: limit from run_start to run_stop
    silence_s: float  #: limit without progress of a rank
    ending_s: float  #: limit from run_stop to the exit of all ranks, which write files


@dataclass(frozen=True, slots=True)
class Runs:
    """The number of runs of a result."""

    count: int
    most_missed: int  #: runs that may miss the target; they count as the slowest


@dataclass(frozen=True, slots=True)
class Training:
    """Hyperparameters of the training loop, with the augmentation of images."""

    global_batch_size: int
    label_smoothing: float = 0.0
    rotation_degrees: float = 0.0  #: augmentation: largest angle
    scale: float = 0.0  #: augmentation: largest relative change of size
    shift: float = 0.0  #: augmentation: largest shift, as a share of the image's width
    flip: bool = False  #: augmentation: mirror half of the images
    crop: Literal["none", "padded", "resized"] = "none"
    #: augmentation: padded crops the image with a border of 4 pixels to its size; resized crops an
    #: area of random size and aspect ratio
    mixup: float = 0.0
    #: augmentation: mix pairs of images in shares from Beta(mixup, mixup) (Zhang et al. 2018);
    #: 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Hyperparameters of the optimiser and its learning-rate schedule.

    One-dimensional parameters (biases and normalisation scales) are exempt from weight decay and
    from the layer-wise rates of LARS and LAMB. Fields with a default are optional in a task.
    """

    name: OptimizerName
    lr: float  #: base learning rate, reached at the end of the warm-up
    end_lr: float  #: learning rate at the end of the decay
    momentum: float = 0.0  #: momentum of sgd and lars
    nesterov: bool = False  #: Nesterov momentum in sgd and lars
    weight_decay: float
    warmup_epochs: float = 0.0  #: linear warm-up from zero; may be fractional
    decay_epochs: int = 0  #: last epoch of the decay, counted from the start of training
    warmup_steps: int = 0  #: steps of a linear warm-up as in MLPerf's BERT, instead of epochs
    start_warmup_step: int = 0  #: step from which warmup_steps count; negative: before the run
    decay_steps: int = 0  #: steps up to the end of the decay, instead of epochs
    decay_from: Literal["start", "warmup"] = "warmup"
    #: where the decay begins: at the end of the warm-up, or as in MLPerf's BERT at the run's start,
    #: so that the rate jumps at the end of the warm-up
    schedule: Decay = "cosine"  #: decay after the warm-up
    power: float = 2.0  #: exponent of the schedule poly
    beta1: float = 0.9  #: adamw and lamb: decay of the running mean of gradients
    beta2: float = 0.999  #: adamw and lamb: decay of the running mean of squared gradients
    epsilon: float = 1e-8  #: adamw, lars and lamb: term added to the denominator
    trust_coefficient: float = 0.001  #: lars: factor of the ratio of weight to gradient norm
    clip_norm: float = 0.0  #: largest gradient norm of the whole model; 0 for no clipping


@dataclass(frozen=True, slots=True)
class Bound:
    """The values that the closed division allows for a hyperparameter."""

    minimum: float | None = None
    maximum: float | None = None
    multiple_of: float | None = None

    def __str__(self) -> str:
        words = {
            "at least": self.minimum,
            "at most": self.maximum,
            "a multiple of": self.multiple_of,
        }
        return " and ".join(
            f"{word} {value:g}" for word, value in words.items() if value is not None
        )

    def admits(self, value: float) -> bool:
        """Return whether ``value`` is within the bound."""
        if self.minimum is not None and value < self.minimum:
            return False
        if self.maximum is not None and value > self.maximum:
            return False
        if self.multiple_of is None:
            return True
        parts = value / self.multiple_of
        return round(parts) > 0 and abs(parts - round(parts)) < 1e-6


@dataclass(frozen=True, slots=True)
class ReferenceRuns:
    """Runs of the reference trainer: samples to target."""

    plan: str
    software: str
    global_batch_size: int
    seeds: tuple[int, ...]  #: [run]
    samples_to_target: tuple[int, ...]  #: [run]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Properties of the model that limit the parallel plan; the trainer's model must have them."""

    tensor_sizes: tuple[int, ...] = ()
    #: numbers that tp must divide, such as the number of attention heads; empty: no tp
    tokens: int | None = None  #: tokens per sample; None if units cannot work token by token
    batch_norm: bool = True  #: whether any unit normalises over the batch
    tied: bool = False  #: whether two units share a parameter


@dataclass(frozen=True, slots=True)
class Initial:
    """The weights that training begins from, and the quality of their evaluation before it."""

    file: str  #: name of a safetensors file in the folder of the data
    sha256: str
    format: WeightFormat  #: whose names the tensors have; safetensors: those of the chain
    quality: float  #: of the evaluation before the first step, a fraction
    tolerance: float  #: largest accepted difference from ``quality``


@dataclass(frozen=True, slots=True)
class Task:
    """A benchmark task: a model, its data and the quality to reach."""

    name: str  #: family/tier
    title: str
    version: int  #: results are compared only within one version
    trainer: str  #: default package whose modules ``train`` and ``predict`` are launched
    units: tuple[str, ...]
    #: names of the model's units, the possible pipeline stage boundaries; a name with ``{key}``
    #: stands for ``model[key]`` units
    model: dict[str, object]  #: hyperparameters of the model, read by its family
    data: Data
    quality: Quality
    evaluation: EvaluationSchedule
    limits: Limits
    runs: Runs
    training: Training
    optimizer: Optimizer
    closed: dict[str, Bound]  #: hyperparameters that the closed division may change
    reference: ReferenceRuns | None = None
    parallel: Parallel = Parallel()
    initial: Initial | None = None  #: weights to begin from; None: random weights of the seed
    tensors_sha256: tuple[str, ...] = ()  #: hashes for a user's own model: see `accepted_tensors`
    sha256: str = field(default="", kw_only=True)  #: SHA-256 of the task file

    def __post_init__(self) -> None:
        units = (name for unit in self.units for name in _expand_name(unit, self.model))
        # One more than the bound is enough to refuse an untrusted file, and bounds memory.
        object.__setattr__(self, "units", tuple(islice(units, _MOST_UNITS + 1)))

    @property
    def family(self) -> str:
        """Return the model family, the first half of the name."""
        return self.name.partition("/")[0]

    @property
    def slug(self) -> str:
        """Return the name as used for folders, such as ``resnet-laptop``."""
        return self.name.replace("/", "-")

    @property
    def steps_per_epoch(self) -> float:
        """Return the optimiser steps per epoch, a fraction if batches span two epochs."""
        return self.data.train_samples / self.training.global_batch_size

    def training_config(
        self,
        devices: int,
        device_kind: str,
        *,
        stages: int | None = None,
        ranks_per_device: int = 1,
        compiler: bool = True,
    ) -> TrainingConfig:
        """Return what plans must fit that train this task on ``devices`` of ``device_kind``.

        ``stages`` is the largest number of stages, if it is known (default: one for each unit).
        """
        return TrainingConfig(
            units=stages or len(self.units),
            global_batch_size=self.training.global_batch_size,
            devices=devices,
            ranks_per_device=ranks_per_device,
            device_kind=device_kind,
            tensor_sizes=self.parallel.tensor_sizes,
            tokens=self.parallel.tokens,
            batch_norm=self.parallel.batch_norm,
            tied=self.parallel.tied,
            compiler=compiler,
            filled=self.data.filled,
        )

    def steps(self, block: Block) -> range:
        """Return the optimiser steps of ``block``, counted from the start of training.

        They end with the last whole batch of its epochs; the remaining samples, fewer than a
        batch, are part of the next block's first batch.
        """
        samples = self.data.train_samples if block.unit == "epochs" else 1
        batch = self.training.global_batch_size
        return range((block.first - 1) * samples // batch, block.last * samples // batch)

    def blocks(self) -> list[Block]:
        """Return the blocks between evaluations, up to the limit of epochs.

        Blocks of a schedule in samples end with the last whole batch: their numbers of samples are
        the numbers trained on.
        """
        schedule, batch = self.evaluation, self.training.global_batch_size
        if every := schedule.every_samples:
            most = self.limits.epochs * self.data.train_samples
            stops = [stop // batch * batch for stop in range(every, most + 1, every)]
        else:
            stops = [*range(schedule.first_epoch, self.limits.epochs + 1, schedule.every_epochs)]
        return [Block(last + 1, stop - last, schedule.unit) for last, stop in pairwise([0, *stops])]


_KEY: Final = re.compile(r"\{(\w+)\}")
_MOST_UNITS: Final = 10_000


def _expand_name(unit: str, model: Mapping[str, object]) -> Iterator[str]:
    """Yield the unit names of a template; ``unit`` itself if ``model`` has no counts for it.

    ``layers.{layers}`` with the count 2 gives ``layers.0`` and ``layers.1``; ``layer{depths}`` with
    [2, 1] gives ``layer1.0``, ``layer1.1`` and ``layer2.0``.
    """
    key = _KEY.search(unit)
    value = model.get(key[1]) if key else None
    counts = value if isinstance(value, list) else [value]
    if key is None or not all(type(count) is int and count >= 0 for count in counts):
        yield unit
        return
    for block, count in enumerate(counts, start=1):
        for index in range(count):
            number = f"{block}.{index}" if counts is value else f"{index}"
            yield f"{unit[: key.start()]}{number}{unit[key.end() :]}"


_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,30}/[a-z0-9][a-z0-9_.-]{0,30}")
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MOST_EPOCHS: Final = 100_000
_MOST_STEPS: Final = 10**9
_MOST_MIXUP: Final = 100  #: larger values give shares near one half only
_LEAST_TOKENS: Final = 8  #: with fewer tokens per sample a segment may be empty
_MOST_TOKENS: Final = 2**16  #: token ids and positions fit into two bytes


def out_of_bounds(task: Task) -> Iterator[tuple[str, str]]:
    """Yield (expected, found) for each name or number of ``task`` that is out of bounds."""
    if not _NAME.fullmatch(task.name):
        expected = "name = family/tier, each of lower-case letters, digits, '.', '_' and '-'"
        yield expected, repr(task.name)
    if not task.units or len(set(task.units)) < len(task.units):
        yield "units with distinct names", f"{list(task.units)!r:.80}"
    for unit in task.units:
        if "{" in unit:
            yield (
                "{key} in units to name a whole number, or a list of them, in [model]",
                f"{unit!r:.80}",
            )
    if len(task.units) > _MOST_UNITS:
        yield f"at most {_MOST_UNITS} units", "more"
    if task.training.mixup and type(classes := task.model.get("classes")) is not int:
        yield "training.mixup = 0 where [model] has no whole number of classes", repr(classes)
    if (initial := task.initial) and not _FILE.fullmatch(initial.file):
        yield "initial.file to be the name of a file, without a folder", f"{initial.file!r:.80}"
    if initial and not _SHA256.fullmatch(initial.sha256):
        yield "initial.sha256 to be 64 hexadecimal digits", f"{initial.sha256!r:.80}"
    numbers: dict[str, tuple[float, float, float]] = {
        "version": (task.version, 1, math.inf),
        "data.train_samples": (task.data.train_samples, 1, math.inf),
        "data.eval_samples": (task.data.eval_samples, 1, math.inf),
        "quality.target": (task.quality.target, 0, 1),
        "quality.rescoring_tolerance": (task.quality.rescoring_tolerance, 0, 1),
        **_evaluation_bounds(task),
        "limits.epochs": (task.limits.epochs, 1, _MOST_EPOCHS),
        "runs.count": (task.runs.count, 1, math.inf),
        "runs.most_missed": (task.runs.most_missed, 0, task.runs.count),
        "training.global_batch_size": (
            task.training.global_batch_size,
            1,
            task.data.train_samples,
        ),
        "training.mixup": (task.training.mixup, 0, _MOST_MIXUP),
        "optimizer.decay_epochs": (
            task.optimizer.decay_epochs,
            0 if task.optimizer.decay_steps else 1,
            math.inf,
        ),
        "optimizer.decay_steps": (task.optimizer.decay_steps, 0, math.inf),
        "optimizer.warmup_steps": (task.optimizer.warmup_steps, 0, math.inf),
        "optimizer.start_warmup_step": (task.optimizer.start_warmup_step, -_MOST_STEPS, 0),
        "optimizer.warmup_epochs": (task.optimizer.warmup_epochs, 0, math.inf),
    }
    if initial:
        numbers["initial.quality"] = (initial.quality, 0, 1)
        numbers["initial.tolerance"] = (initial.tolerance, 0, 1)
    for what in ("warmup", "decay"):
        given = (f"optimizer.{what}_epochs", f"optimizer.{what}_steps")
        if all(getattr(task.optimizer, key.partition(".")[2]) for key in given):
            yield f"{given[0]} or {given[1]} to be 0", "both"
    if not task.data.filled and task.data.text is None:
        yield "data.filled = true for samples that are not text", "false"
    if text := task.data.text:
        numbers |= {
            "data.text.tokens": (text.tokens, _LEAST_TOKENS, _MOST_TOKENS),
            "data.text.masked": (text.masked, 1, text.tokens - _LEAST_TOKENS // 2),
            "data.text.vocabulary": (text.vocabulary, 1, _MOST_TOKENS),
        }
        for key in ("tokens", "masked", "vocabulary"):
            if task.model.get(key, getattr(text, key)) != getattr(text, key):
                yield f"model.{key} = data.text.{key}", f"{task.model[key]!r:.80}"
    for key, (value, least, most) in numbers.items():
        if not least <= value <= most:
            bound = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            yield f"{key} {bound}", str(value)


def _evaluation_bounds(task: Task) -> dict[str, tuple[float, float, float]]:
    """Return the numbers of the evaluation schedule with their bounds."""
    schedule, epochs = task.evaluation, task.limits.epochs
    if not schedule.every_samples:
        return {
            "evaluation.first_epoch": (schedule.first_epoch, 1, epochs),
            "evaluation.every_epochs": (schedule.every_epochs, 1, math.inf),
        }
    most = epochs * task.data.train_samples
    least = max(task.training.global_batch_size, -(-most // _MOST_EPOCHS))  # a step in each block
    return {
        "evaluation.first_epoch": (schedule.first_epoch, 0, 0),
        "evaluation.every_epochs": (schedule.every_epochs, 0, 0),
        "evaluation.every_samples": (schedule.every_samples, least, most),
    }
