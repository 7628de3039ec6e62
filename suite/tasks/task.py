"""The task: what is trained, on which data, to which quality, within which limits."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from suite.findings import Finding, visible
from suite.refusal import ExitCode, Refusal
from suite.tasks.bounds import out_of_bounds
from suite.tasks.schema import build

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Block",
    "Bound",
    "Data",
    "Decay",
    "Division",
    "Limits",
    "Optimizer",
    "OptimizerName",
    "Parallel",
    "Task",
    "Text",
    "Training",
    "parse_task",
    "read_task",
]

Division = Literal["closed", "open"]
OptimizerName = Literal["sgd", "adamw", "lars", "lamb"]
Decay = Literal["cosine", "poly", "linear", "constant"]


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of training between two evaluations."""

    first_epoch: int  #: epochs are counted from 1
    epochs: int

    @property
    def last_epoch(self) -> int:
        """Return the epoch after which the block is evaluated."""
        return self.first_epoch + self.epochs - 1


@dataclass(frozen=True, slots=True)
class Text:
    """How samples are made of running text; ``[model]`` has numbers of the same names."""

    tokens: int  #: of a sample: class, segment, separator, segment, separator
    masked: int  #: of these, to be predicted
    vocabulary: int  #: entries
    vocabulary_sha256: str  #: of the file vocab.txt


@dataclass(frozen=True, slots=True)
class Data:
    """Which samples, where they come from, and how they are split."""

    name: str  #: a loader of `suite.tasks.data`
    source: str
    sha256: str  #: of the decompressed source, where its loader does not say otherwise
    split: str  #: the published rule that divides training from evaluation
    train_samples: int
    eval_samples: int
    mean: float = 0.0  #: of the training images, for normalisation
    std: float = 1.0
    channel_means: tuple[float, ...] = ()  #: of colour images, red, green and blue
    channel_stds: tuple[float, ...] = ()
    editions: dict[str, str] | None = None
    #: SHA-256 of known editions by name; where given, others run too, and compare only with equals
    text: Text | None = None


@dataclass(frozen=True, slots=True)
class Quality:
    """What must be reached, measured how, and why that much."""

    metric: str
    target: float
    reason: str
    rescoring_tolerance: float  #: how far the harness's own scoring may lie from the trainer's


@dataclass(frozen=True, slots=True)
class Evaluation:
    """When the trainer evaluates; every evaluation is on the clock."""

    first_epoch: int
    every_epochs: int
    checkpoint: bool = False  #: save at each one, so that an interrupted run can go on from there


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a run that does not end itself."""

    epochs: int  #: the run stops with status aborted after so many
    initialisation_s: float  #: from launch to run_start
    run_s: float  #: from run_start to run_stop
    silence_s: float  #: without a sign of progress from any rank
    ending_s: float  #: from run_stop to the exit of every rank, saving included


@dataclass(frozen=True, slots=True)
class Runs:
    """How many runs make a result."""

    count: int
    most_missed: int  #: so many may miss the target; they count as the slowest


@dataclass(frozen=True, slots=True)
class Training:
    """Hyperparameters of the loop."""

    global_batch_size: int
    label_smoothing: float = 0.0
    rotation_degrees: float = 0.0  #: augmentation: largest angle
    scale: float = 0.0  #: augmentation: largest relative change of size
    shift: float = 0.0  #: augmentation: largest shift, as a share of the image's width
    flip: bool = False  #: augmentation: every other image is mirrored
    crop: Literal["none", "padded", "resized"] = "none"
    #: augmentation: a part of the image with a border of 4 pixels, or of any size and shape
    mixup: float = 0.0
    #: augmentation: each image is mixed with another, in shares of Beta(mixup, mixup); 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """Hyperparameters of the optimiser and its learning-rate schedule.

    Parameters of one dimension (biases, and the scales of normalisations) are exempt from weight
    decay and from the layer-wise rates of lars and lamb. A task need not state what has a default.
    """

    name: OptimizerName
    lr: float  #: base learning rate, reached at the end of the warm-up
    end_lr: float  #: learning rate at the end of the decay
    momentum: float = 0.0  #: of sgd and lars
    nesterov: bool = False  #: of sgd and lars
    weight_decay: float
    warmup_epochs: float  #: linear, from zero; may be a fraction
    decay_epochs: int  #: counted from the start of training, warm-up included
    schedule: Decay = "cosine"  #: after the warm-up
    power: float = 2.0  #: of the schedule poly
    beta1: float = 0.9  #: of adamw and lamb: decay of the mean of gradients
    beta2: float = 0.999  #: of adamw and lamb: decay of the mean of their squares
    epsilon: float = 1e-8  #: of adamw, lars and lamb: added to a denominator
    trust_coefficient: float = 0.001  #: of lars: a layer's rate where weight and gradient are equal
    clip_norm: float = 0.0  #: most norm of the gradient of the whole model; 0 for any


@dataclass(frozen=True, slots=True)
class Bound:
    """What values the closed division allows for a hyperparameter that may change."""

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
        """Tell whether ``value`` keeps the bound."""
        if self.minimum is not None and value < self.minimum:
            return False
        if self.maximum is not None and value > self.maximum:
            return False
        if self.multiple_of is None:
            return True
        parts = value / self.multiple_of
        return round(parts) > 0 and abs(parts - round(parts)) < 1e-6


@dataclass(frozen=True, slots=True)
class Reference:
    """Runs of the reference trainer that say how many samples convergence takes."""

    plan: str
    software: str
    global_batch_size: int
    seeds: tuple[int, ...]
    samples_to_target: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    """What a plan may divide besides units and batch, which a trainer's model must bear out."""

    tensor_sizes: tuple[int, ...] = ()
    #: what tensor parallelism divides, such as attention heads; empty where nothing may be split
    tokens: int | None = None  #: of a sample, where units work token by token
    batch_norm: bool = True  #: whether any unit normalises over the batch
    tied: bool = False  #: whether two units share a parameter


@dataclass(frozen=True, slots=True)
class Task:
    """One benchmark: a model, its data and a quality to reach."""

    name: str  #: family/tier
    title: str
    version: int  #: results compare only within one version
    trainer: str  #: package whose modules ``train`` and ``predict`` are launched; any will do
    units: tuple[str, ...]  #: names of the chain's units; stage boundaries fall between them
    model: dict[str, object]  #: numbers of the model, read by its family's chain
    data: Data
    quality: Quality
    evaluation: Evaluation
    limits: Limits
    runs: Runs
    training: Training
    optimizer: Optimizer
    closed: dict[str, Bound]  #: hyperparameters that the closed division may change
    reference: Reference | None = None
    parallel: Parallel = Parallel()
    sha256: str = field(default="", kw_only=True)  #: of the file the task was read from

    @property
    def family(self) -> str:
        """Return the model family, the first half of the name."""
        return self.name.partition("/")[0]

    @property
    def slug(self) -> str:
        """Return the name as a folder name."""
        return self.name.replace("/", "-")

    @property
    def steps_per_epoch(self) -> float:
        """Return the optimiser steps of one epoch: its last batch may run on into the next one."""
        return self.data.train_samples / self.training.global_batch_size

    def steps(self, block: Block) -> range:
        """Return the optimiser steps of ``block``, counted from the start of training.

        They end with the last whole batch of its epochs; what is left of the last epoch, less than
        a batch, the next block begins with.
        """
        samples, batch = self.data.train_samples, self.training.global_batch_size
        return range(
            (block.first_epoch - 1) * samples // batch, block.last_epoch * samples // batch
        )

    def blocks(self) -> list[Block]:
        """Return the stretches of training between evaluations, up to the limit."""
        first, stop = 1, self.evaluation.first_epoch
        blocks = []
        while stop <= self.limits.epochs:
            blocks.append(Block(first, stop - first + 1))
            first, stop = stop + 1, stop + self.evaluation.every_epochs
        return blocks


def read_task(path: Path) -> Task:
    """Read the task file at ``path``.

    Raises:
        Refusal: exit status 2 where the file cannot be read, or as `parse_task`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refuse(str(path), error.strerror or str(error)) from error
    return parse_task(content, str(path))


def parse_task(content: bytes, path: str) -> Task:
    """Return the task that is the ``content`` of the file ``path``.

    Raises:
        Refusal: exit status 2 where it is no TOML, breaks the schema or has a number that no task
            can have.
    """
    try:
        table = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise _refuse(path, str(error)) from error
    table["sha256"] = hashlib.sha256(content).hexdigest()
    task = build(Task, table, path=visible(path))
    for expected, found in out_of_bounds(task):
        finding = Finding("task.bounds", expected, found, "correct it", path=visible(path))
        raise Refusal(finding, ExitCode.USAGE)
    return task


def _refuse(path: str, found: str) -> Refusal:
    finding = Finding(
        "task.file", "a TOML file of UTF-8 text", found, "correct it", path=visible(path)
    )
    return Refusal(finding, ExitCode.USAGE)
