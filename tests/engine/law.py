"""The law of delayed training, computed in one process with plain loops and torch's optimizers.

    V(t + 1) = V(t) + U(mean over replicas of g_t(V(max(0, t - d))))

Nothing here is the engine's but the models and what reads their samples.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy import uint64
from numpy.random import SeedSequence
from torch import Tensor
from torch.func import functional_call

from hybridperf.run.access import TrainingData
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.chain import Stage
from tests.engine.families import FAMILIES, SEED, Family
from tests.engine.odd_models import ODD, OddModel
from tests.engine.one_process import DeferredStatistics, cut_batch
from tests.engine.simulated_streams import SimulatedStreams

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.plan import ParallelPlan
    from hybridperf.tasks.task import Optimizer, Task
    from hybridperf_reference.engine.chain import Objective

STEPS, BATCH, SAMPLES = 20, 8, 16
BLOCKS = (Block(1, 3), Block(4, 1), Block(5, 6))  # of 6, 2 and 12 steps
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"name": "sgd", "lr": 0.02, "momentum": 0.9},
    "adamw": {"name": "adamw", "lr": 0.003, "epsilon": 1e-3},
    "lamb": {"name": "lamb", "lr": 0.01, "epsilon": 1e-3},
}


@functools.cache
def delayed_family(name: str, optimizer: str, *, clip: float = 0.0, fp32: bool = False) -> Family:
    """Return a family that trains for twenty steps of eight samples."""
    row = (FAMILIES | ODD)[name]
    options = OPTIMIZERS[optimizer] | {"schedule": "cosine", "clip_norm": clip}
    options |= {"decay_epochs": SAMPLES * 2, "end_lr": 0.0}
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    fields |= {"batch": BATCH, "optimizer": options, "reads_ahead": False, "evaluated": BATCH}
    fields["dtype"] = torch.float32 if fp32 else torch.float64
    return _DelayedOdd(**fields) if isinstance(row, OddModel) else _Delayed(**fields)


class _Delayed(Family):
    """A family with ten epochs of sixteen samples."""

    @functools.cache  # noqa: B019 - families are cached, too
    def task(self) -> Task:
        task = super().task()
        data = dataclasses.replace(task.data, train_samples=SAMPLES)
        return dataclasses.replace(task, data=data)


class _DelayedOdd(_Delayed, OddModel):
    """One of the odd models, likewise."""


@functools.cache
def objective_of(row: Family) -> Objective:
    """Return the objective of a family's model."""
    return row.chain().objective


@functools.cache
def _stored(row: Family, index: int, epoch: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Read a sample once for all laws of a family."""
    which = row.splits().train, np.array([index]), SEED, epoch
    objective = objective_of(row)
    return objective.read(*which), objective.targets(*which)


def read_rows(row: Family, part: NDArray[Any]) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the samples in ``part``, rows of index and epoch."""
    inputs, targets = zip(*(_stored(row, int(i), int(epoch)) for i, epoch in part), strict=True)
    return objective_of(row).prepare(*map(torch.cat, zip(*inputs, strict=True))), torch.cat(targets)


def block_data(row: Family, block: Block) -> TrainingData:
    """Return the samples of ``block``, in the order of the run's seed."""
    return TrainingData(row.splits().train, row.task(), SEED, block, on_batch=lambda: None)


@dataclasses.dataclass(frozen=True)
class Law:
    """What is to be computed."""

    family: Family
    staleness: int
    plan: ParallelPlan  #: says how a batch is cut, where it matters
    scale: float = 1.0  #: of the loss at the beginning, halved where a gradient is not finite


@functools.cache
def by_the_law(law: Law) -> dict[str, Any]:
    """Return the weights after all steps, running statistics, and the mean loss of each block."""
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        streams = SimulatedStreams(SEED, law.plan)
        if law.family.dropout:
            streams.patch(patch)
        return _follow(law, streams)


def _follow(law: Law, streams: SimulatedStreams) -> dict[str, Any]:
    torch.set_num_threads(1)
    row, plan, objective = law.family, law.plan, objective_of(law.family)
    count = 1 if plan.bn == "sync" else plan.dp
    chains = [row.chain() for _ in range(count)]
    for chain in chains if row.dropout else ():
        for number, unit in enumerate(chain.units):
            streams.follow(number, unit)
    replicas = [Stage(chain.units).train() for chain in chains]
    deferred = [DeferredStatistics(each) for each in replicas] if plan.bn == "deferred" else []
    trained = {n: p for n, p in replicas[0].named_parameters() if p.requires_grad}
    versions = [{name: p.detach().clone() for name, p in trained.items()}]
    scales = [law.scale]  # by version
    average = EmulatedPowerSgd(law) if plan.gradients == "powersgd" else _Mean()
    update = _Update(row.task().optimizer, versions[0])
    losses = []
    for block in BLOCKS:
        losses.append(0.0)
        for batch in block_data(row, block).batches():
            seen = max(0, batch.step - law.staleness)
            rows = np.stack([batch.indices, batch.epochs], axis=1)
            everything = objective.count(read_rows(row, rows)[1])
            cut = cut_batch(rows, plan.dp, plan.microbatches, plan.bn)
            streams.step = batch.step
            of_replicas = []
            for number, replica in enumerate(replicas):
                leaves = {n: w.clone().requires_grad_() for n, w in versions[seen].items()}
                for part_number, part in enumerate(cut[number]):
                    streams.micro_batch = number * plan.microbatches + part_number
                    inputs, targets = read_rows(row, part)
                    with torch.autocast("cpu", torch.float16, enabled=plan.precision == "fp16"):
                        outputs = functional_call(replica, leaves, (inputs,), tie_weights=False)
                    loss = (objective.loss(outputs, targets) / torch.as_tensor(everything)).sum()
                    (loss * scales[seen] * count).backward()
                    losses[-1] += loss.item()
                of_replicas.append(leaves)
            for statistics in deferred:
                statistics.commit()
            mean = {
                name: average.of(name, batch.step, [_gradient(each[name]) for each in of_replicas])
                / scales[seen]
                for name in versions[0]
            }
            finite = all(bool(gradient.isfinite().all()) for gradient in mean.values())
            scales.append(scales[-1] if finite else scales[-1] / 2)
            versions.append(update.of(versions[-1], mean, batch.step) if finite else versions[-1])
        losses[-1] /= len(row.task().steps(block))
    buffers = [dict(replica.named_buffers()) for replica in replicas]
    return {
        "weights": versions[-1],
        "statistics": {
            name: torch.stack([each[name].double() for each in buffers]).mean(dim=0)
            for name in buffers[0]
        },
        "losses": losses,
        "scale": scales[-1],
    }


def _gradient(leaf: Tensor) -> Tensor:
    """Return the gradient of ``leaf``, which is zero where no pass used it."""
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad


class _Mean:
    """The mean over replicas."""

    def of(self, name: str, step: int, gradients: list[Tensor]) -> Tensor:  # noqa: ARG002 - none
        return torch.stack(gradients).mean(dim=0)


class EmulatedPowerSgd(_Mean):
    """Vogels et al. 2019 for all replicas at once; every step d + 1 later takes what one leaves.

    The first factors are the engine's, since their values are arbitrary.
    """

    def __init__(self, law: Law) -> None:
        self._slots, self._index = law.staleness + 1, 0
        self._residues: dict[tuple[str, int], list[Tensor]] = {}
        self._factors: dict[tuple[str, int], Tensor] = {}
        named = Stage(law.family.chain().units).named_parameters()
        trained = (name for name, parameter in named if parameter.requires_grad)
        self._numbers = {name: number for number, name in enumerate(trained)}

    def of(self, name: str, step: int, gradients: list[Tensor]) -> Tensor:
        shape = gradients[0].shape
        rows, columns = (shape[0], shape[1:].numel()) if len(shape) > 1 else (1, 1)
        if 4 * (rows + columns) >= rows * columns:
            return super().of(name, step, gradients)
        place = name, step % self._slots
        matrices = [gradient.reshape(rows, columns).double() for gradient in gradients]
        residues = self._residues.get(place, [torch.zeros_like(each) for each in matrices])
        matrices = [m + residue for m, residue in zip(matrices, residues, strict=True)]
        if place not in self._factors:
            self._factors[place] = first_factor(self._numbers[name], columns)
        left = torch.stack([m @ self._factors[place] for m in matrices]).mean(dim=0)
        basis = torch.linalg.qr(left).Q
        right = torch.stack([m.T @ basis for m in matrices]).mean(dim=0)
        self._residues[place] = [m - basis @ (m.T @ basis).T for m in matrices]
        sent = (right != 0).any(dim=0)  # a column of zeros would stay one
        self._factors[place] = torch.where(sent, right, self._factors[place])
        average: Tensor = basis @ right.T
        return average.reshape(shape).to(gradients[0].dtype)


def first_factor(number: int, columns: int) -> Tensor:
    """Return the factor [column, rank] that the engine draws for parameter ``number`` of a rank."""
    state = SeedSequence([SEED, number]).generate_state(1, uint64)
    generator = torch.Generator().manual_seed(int(state[0]))
    return torch.randn(columns, 4, generator=generator).double()


class _Update:
    """U of the law: clipping, the learning rate, and an optimizer of torch's or of a formula."""

    def __init__(self, config: Optimizer, weights: dict[str, Tensor]) -> None:
        self._config = config
        self._own = {name: torch.nn.Parameter(w.clone()) for name, w in weights.items()}
        matrices, vectors = (
            [p for p in self._own.values() if (p.dim() > 1) == many] for many in (True, False)
        )
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._lamb = _Lamb(config)
        self._torch: torch.optim.Optimizer
        if config.name == "adamw":
            betas = config.beta1, config.beta2
            self._torch = torch.optim.AdamW(groups, betas=betas, eps=config.epsilon)
        else:
            self._torch = torch.optim.SGD(
                groups, momentum=config.momentum, nesterov=config.nesterov
            )

    def of(
        self, weights: dict[str, Tensor], gradients: dict[str, Tensor], step: int
    ) -> dict[str, Tensor]:
        """Return ``weights`` after the update by the gradients of ``step``."""
        most = self._config.clip_norm
        squares = torch.stack([g.double().square().sum() for g in gradients.values()])
        factor = min(1.0, most / squares.sum().sqrt().item()) if most else 1.0
        rate = self._rate(step)
        if self._config.name == "lamb":
            clipped = {name: gradient * factor for name, gradient in gradients.items()}
            return self._lamb.of(weights, clipped, rate)
        for name, parameter in self._own.items():
            parameter.data.copy_(weights[name])
            parameter.grad = torch.empty_like(parameter).copy_(gradients[name] * factor)
        for group in self._torch.param_groups:
            group["lr"] = rate
        self._torch.step()
        return {name: parameter.detach().clone() for name, parameter in self._own.items()}

    def _rate(self, step: int) -> float:
        """Return the rate of ``step``: a warm-up of one epoch, then half a cosine."""
        warmup, decay = SAMPLES // BATCH, SAMPLES * 2 * SAMPLES // BATCH
        if step < warmup:
            return self._config.lr * (step + 1) / warmup
        share = (step - warmup) / (decay - warmup)
        return self._config.lr * (1 + math.cos(math.pi * share)) / 2


class _Lamb:
    """You et al. 2020, algorithm 2, one parameter after the other; biases and norms: plain Adam."""

    def __init__(self, config: Optimizer) -> None:
        self._config, self._steps = config, 0
        self._mean, self._square = dict[str, Tensor](), dict[str, Tensor]()

    def of(
        self, weights: dict[str, Tensor], gradients: dict[str, Tensor], rate: float
    ) -> dict[str, Tensor]:
        """Return ``weights`` after one step."""
        config, self._steps = self._config, self._steps + 1
        updated = {}
        for name, w in weights.items():
            g, zero = gradients[name], torch.zeros_like(w)
            m = config.beta1 * self._mean.get(name, zero) + (1 - config.beta1) * g
            v = config.beta2 * self._square.get(name, zero) + (1 - config.beta2) * g**2
            self._mean[name], self._square[name] = m, v
            m, v = m / (1 - config.beta1**self._steps), v / (1 - config.beta2**self._steps)
            u, ratio = m / (v.sqrt() + config.epsilon), 1.0
            if w.dim() > 1:
                u = u + config.weight_decay * w
                length, change = w.norm().item(), u.norm().item()
                ratio = length / change if length and change else 1.0
            updated[name] = w - rate * ratio * u
        return updated
