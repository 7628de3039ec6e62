"""The model families that every plan is tested on: a family is one row."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from hybridperf.plan import ParallelPlan, TrainingConfig
from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import Samples, Splits, load
from hybridperf.tasks.registry import find_task
from hybridperf.tasks.task import Block
from hybridperf_reference.models import chain_of
from tests.engine.drawn_pairs import drawn_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain, Objective

SEED = 7
_SGD: dict[str, Any] = {
    "name": "sgd",
    "lr": 0.05,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "clip_norm": 0.0,
}
STEPS = 3
BATCH = 24
EPOCHS = 2  # so that the second of the batches is of two epochs
EVALUATED = 67  # no number of replicas divides it


@functools.cache
def published(name: str) -> Splits:
    """Return the samples of a task, which are read once for all families."""
    return load(find_task(name).data)


def _published(task: Task) -> Splits:
    """Return the first samples of the task's own data."""
    splits = published(task.name)
    counts = (task.data.train_samples, task.data.eval_samples)
    train, evaluation = (
        Samples(part.inputs[:count], part.labels[:count])
        for part, count in zip((splits.train, splits.evaluation), counts, strict=True)
    )
    return Splits(train, evaluation)


@dataclass(frozen=True, eq=False)
class Family:
    """A task whose model is small, and has eight units, so that four ranks may hold two stages."""

    task_name: str
    model: dict[str, Any]  #: what differs from the task's own
    units: tuple[str, ...]
    tensor_sizes: tuple[int, ...] = ()
    tokens: int | None = None
    batch_norm: bool = False
    dtype: torch.dtype = torch.float32
    optimizer: Mapping[str, Any] = field(default_factory=dict)  #: other than plain momentum SGD
    samples: Callable[[Task], Splits] = _published
    batch: int = BATCH
    reads_ahead: bool = True  #: with worker processes, where the objective does
    evaluated: int = EVALUATED
    filled: bool = True  #: whether all samples have equal numbers of tokens
    steps: int = STEPS
    tied: bool = False

    def of(self, plan: ParallelPlan) -> Family:
        """Return this family with no more encoder layers than the stages of ``plan`` need.

        Where it is compiled, which takes seconds for each shape, it is evaluated on one batch.
        """
        layers = min(self.model.get("layers", 0), max(2, plan.pipeline_stages - 1))
        row = _with_layers(self, layers) if layers else self
        return _with_one_shape(row) if plan.compile else row

    @functools.cache  # noqa: B019 - families are constants of this module
    def task(self) -> Task:
        """Return the task with two epochs of its steps, of plain momentum SGD where not stated.

        AdamW would magnify what is left of gradients that are zero but for rounding in fp32.
        """
        task = find_task(self.task_name)
        optimizer = dataclasses.replace(
            task.optimizer,
            warmup_epochs=1,
            **(_SGD | dict(self.optimizer)),
        )
        return dataclasses.replace(
            task,
            units=self.units,
            model=task.model | self.model,
            data=dataclasses.replace(
                task.data,
                train_samples=self.steps * self.batch // EPOCHS,
                eval_samples=self.evaluated,
                filled=self.filled,
            ),
            training=dataclasses.replace(task.training, global_batch_size=self.batch),
            optimizer=optimizer,
        )

    @property
    def dropout(self) -> bool:
        """Tell whether the model drops activations in training."""
        return bool(self.model.get("dropout"))

    @functools.cache  # noqa: B019 - as above
    def splits(self) -> Splits:
        """Return the samples of three steps, and a few held-out ones."""
        return self.samples(self.task())

    def built(self) -> Chain:
        """Return the model as its family builds it."""
        return chain_of(self.task(), SEED)

    def chain(self) -> Chain:
        """Return the model, the same at every call, its parameters moved a little from zeros."""
        chain = self.built()
        for unit in chain.units:
            unit.module.to(self.dtype)
            for parameter in unit.module.parameters():
                noise = torch.randn_like(parameter)
                parameter.data.add_(noise, alpha=0.1 if parameter.dim() == 1 else 0.02)
        if self.dtype == torch.float32:
            return chain

        def example(batch: int) -> tuple[Tensor, Tensor]:
            inputs, targets = chain.example(batch)
            return _widened(inputs, self.dtype), targets

        return dataclasses.replace(chain, objective=_Wide(chain.objective, self), example=example)

    def batches(self, splits: Splits) -> TrainingData:
        """Return the three batches."""
        return TrainingData(
            splits.train, self.task(), SEED, Block(1, EPOCHS), on_batch=lambda: None
        )

    def takes(self, plan: ParallelPlan) -> bool:
        """Tell whether ``plan`` fits, and its precision narrows what is computed."""
        narrows = plan.precision == "fp32" or self.dtype == torch.float32
        return narrows and not plan.check(self.config)

    @property
    def config(self) -> TrainingConfig:
        """Return what a plan must fit, on as many devices as a test may start."""
        return TrainingConfig(
            len(self.units),
            self.batch,
            devices=8,
            ranks_per_device=1,
            device_kind="accelerator",  # the processor has nothing to offload to; code can be tried
            tensor_sizes=self.tensor_sizes,
            tokens=self.tokens,
            batch_norm=self.batch_norm,
            filled=self.filled,
            tied=self.tied,
        )


class _Wide:
    """An objective whose inputs are wider than it makes them."""

    def __init__(self, objective: Objective, family: Family) -> None:
        self._objective, self._dtype = objective, family.dtype
        self.reads_ahead = objective.reads_ahead and family.reads_ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)

    def prepare(self, *stored: Tensor) -> Tensor:
        return _widened(self._objective.prepare(*stored), self._dtype)

    def evaluation(self, stored: Any) -> Tensor:
        return _widened(self._objective.evaluation(stored), self._dtype)


def _widened(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return numbers in ``dtype``, and tokens as they are."""
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


@functools.cache
def _with_layers(family: Family, layers: int) -> Family:
    units = ("embeddings", *_layers(layers), "head")
    return dataclasses.replace(family, model=family.model | {"layers": layers}, units=units)


@functools.cache
def _with_one_shape(family: Family) -> Family:
    return dataclasses.replace(family, evaluated=family.batch)


def _layers(count: int) -> tuple[str, ...]:
    return tuple(f"layers.{number}" for number in range(count))


_PAIRS: dict[str, Any] = {
    "tied": False,
    "vocabulary": 64,
    "masked": 3,
    "hidden": 32,
    "layers": 6,
    "heads": 4,
    "inner": 48,
}

# The gradient of a ReLU jumps: in fp32, sums in another order carry some of a million activations
# over its kink, and a step later gradients differ by per cents. In fp64 none is near enough. What
# the relation's head learns from is the small difference of two kinds, of which rounding in fp32 is
# 1.3e-5: in fp64 it is none.
FAMILIES = {
    "resnet": Family(
        "resnet/laptop",
        {"width": 8, "depths": [2, 2, 1, 1]},
        ("stem", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer4.0", "head"),
        batch_norm=True,
        dtype=torch.float64,
    ),
    "vgg": Family(
        "vgg/laptop",
        {"widths": [8, 16, 16], "depths": [1, 2, 2], "hidden": 32},
        ("conv1.0", "conv2.0", "conv2.1", "conv3.0", "conv3.1", "fc1", "fc2", "fc3"),
        tensor_sizes=(64,),
        dtype=torch.float64,
    ),
    "vit": Family(
        "vit/laptop",
        {"hidden": 32, "inner": 48, "layers": 6},
        ("embeddings", *_layers(6), "head"),
        tensor_sizes=(4, 48),
        tokens=17,
    ),
    "bert": Family(
        "bert/laptop",
        {"hidden": 32, "inner": 48, "layers": 6},
        ("embeddings", *_layers(6), "head"),
        tensor_sizes=(4, 48),
        tokens=32,
    ),
    "bert_pairs": Family(
        "bert/workstation",
        _PAIRS | {"tokens": 16, "dropout": 0.0},
        ("embeddings", *_layers(6), "head"),
        tensor_sizes=(4, 48),
        tokens=16,
        dtype=torch.float64,
        samples=drawn_pairs,
    ),
    "bert_lengths": Family(
        "bert/workstation",
        _PAIRS | {"tokens": 16, "dropout": 0.0},
        ("embeddings", *_layers(6), "head"),
        tensor_sizes=(4, 48),
        tokens=16,
        dtype=torch.float64,
        samples=drawn_pairs,
        filled=False,
    ),
    # Tokens that no ranks share evenly, so that they draw different numbers of random numbers.
    "dropout_adamw": Family(
        "bert/workstation",
        _PAIRS | {"tokens": 17, "dropout": 0.1, "hidden": 36, "heads": 6},
        ("embeddings", *_layers(6), "head"),
        tensor_sizes=(6, 48),
        tokens=17,
        dtype=torch.float64,
        optimizer={"name": "adamw", "lr": 0.01, "epsilon": 1e-6, "clip_norm": 0.5},
        samples=drawn_pairs,
        reads_ahead=False,  # a fork takes as long as a step, and bert_pairs forks
    ),
    "dropout_lamb": Family(
        "bert/workstation",
        _PAIRS | {"tokens": 17, "dropout": 0.1, "hidden": 36, "heads": 6},
        ("embeddings", *_layers(6), "head"),
        tensor_sizes=(6, 48),
        tokens=17,
        dtype=torch.float64,
        optimizer={"name": "lamb", "lr": 0.01, "epsilon": 1e-6, "clip_norm": 0.5},
        samples=drawn_pairs,
        reads_ahead=False,  # a fork takes as long as a step, and bert_pairs forks
    ),
}
_TIED = Family(
    "bert/workstation",
    _PAIRS | {"tokens": 16, "dropout": 0.0, "tied": True},
    ("embeddings", *_layers(6), "head"),
    tensor_sizes=(4, 48),
    tokens=16,
    dtype=torch.float64,
    optimizer={"clip_norm": 0.5},
    samples=drawn_pairs,
    reads_ahead=False,
    steps=5,
    tied=True,
)
FAMILIES |= {
    "dropout_lars": dataclasses.replace(
        FAMILIES["dropout_lamb"],
        optimizer={"name": "lars", "lr": 1.0, "trust_coefficient": 0.02, "clip_norm": 0.5},
    ),
    "bert_tied": _TIED,
    "bert_tied_adamw": dataclasses.replace(_TIED, optimizer=FAMILIES["dropout_adamw"].optimizer),
    "bert_tied_lamb": dataclasses.replace(_TIED, optimizer=FAMILIES["dropout_lamb"].optimizer),
}
