"""The task: what is trained, on which data, to which quality, within which limits."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from suite.findings import Finding, visible
from suite.refusal import ExitCode, Refusal
from suite.tasks.schema import build

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Block",
    "Bound",
    "Data",
    "Division",
    "Limits",
    "Optimizer",
    "Task",
    "Training",
    "read_task",
]

Division = Literal["closed", "open"]


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
class Data:
    """Which samples, where they come from, and how they are split."""

    name: str  #: a loader of `suite.tasks.data`
    source: str
    sha256: str  #: of the decompressed source file
    split: str  #: the published rule that divides training from evaluation
    train_samples: int
    eval_samples: int
    mean: float  #: of the training images, for normalisation
    std: float


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
    label_smoothing: float
    rotation_degrees: float  #: augmentation: largest angle
    scale: float  #: augmentation: largest relative change of size
    shift: float  #: augmentation: largest shift, as a share of the image's width


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Hyperparameters of the optimiser and its learning-rate schedule."""

    name: Literal["sgd"]
    lr: float  #: base learning rate, reached at the end of the warm-up
    end_lr: float  #: learning rate at the end of the decay
    momentum: float
    nesterov: bool
    weight_decay: float  #: not applied to parameters of one dimension
    warmup_epochs: int  #: linear, from zero
    decay_epochs: int  #: cosine, counted from the start of training


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
    def steps_per_epoch(self) -> int:
        """Return the optimiser steps of one epoch; the last, partial batch is dropped."""
        return self.data.train_samples // self.training.global_batch_size

    @property
    def samples_per_epoch(self) -> int:
        """Return the samples trained on in one epoch."""
        return self.steps_per_epoch * self.training.global_batch_size

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
        Refusal: exit status 2 where the file cannot be read or breaks the schema.
    """
    try:
        content = path.read_bytes()
        table = tomllib.loads(content.decode())
    except (OSError, ValueError) as error:
        reason = Finding(
            "task.file",
            "a TOML file of UTF-8 text",
            str(error),
            "correct it",
            path=visible(str(path)),
        )
        raise Refusal(reason, ExitCode.USAGE) from error
    table["sha256"] = hashlib.sha256(content).hexdigest()
    return build(Task, table, path=str(path))
