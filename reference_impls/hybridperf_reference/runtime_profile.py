"""Time what runtimes add to a step: steps of small models under plans, beside their projections.

The models have units of linear layers, and few samples, so that hooks, copies and Python take most
of a step. What a step takes beyond what is projected of its passes and messages is the runtime's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from hybridperf.plan import ParallelPlan
from hybridperf.projection import units as unit_tables
from hybridperf.projection.project import project
from hybridperf.projection.runtime_work import (
    RuntimeWork,
    averaging_runtime,
    fit_work,
    pass_runtime,
)
from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import Samples
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.engine.mesh import build_mesh
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.engine.unit_profile import (
    UnitProfiler,
    mean_of_ranks,
    median_of_means,
    most_of_ranks,
)
from hybridperf_reference.images.classifier import ImageClassifier
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.projection.link import Network
    from hybridperf.projection.units import UnitTimes
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["measure_runtimes"]

_STEPS: Final = 23
_FIRST: Final = 3  # step that is measured first: a delayed plan is steady then
_SAMPLES: Final = 8  # of a micro-batch
_MICROBATCHES: Final = 4  # for each rank of a pipeline
_AVERAGING: Final = ("sync=blocking", "sync=overlapped", "staleness=1", "zero=1")
_PIPELINES: Final = ("schedule=1f1b", "staleness=1,flush=off")


@dataclass(frozen=True, slots=True)
class _Size:
    """Of a model: equal units, each of so many linear layers with so many features."""

    units: int
    layers: int
    features: int


# Numbers of units, of tensors and of bytes that do not grow together.
_SIZES: Final = (_Size(2, 1, 16), _Size(8, 1, 16), _Size(8, 4, 16), _Size(4, 1, 512))


def measure_runtimes(task: Task, network: Network, device: torch.device) -> list[RuntimeWork]:
    """Time small models on all ranks, and return what each runtime adds to what is projected.

    The optimizer is that of ``task``. ``network`` is that between the ranks. A collective.
    """
    ranks = dist.get_world_size()
    meshes = {
        plan: build_mesh(plan, device)
        for plan in (ParallelPlan.parse(f"dp={ranks},{text}") for text in _AVERAGING)
    }
    models = [_Model(task, size) for size in _SIZES]
    times = [model.times(device) for model in models]
    found = []
    for plan, mesh in meshes.items():
        name = averaging_runtime(plan)
        assert name is not None, "it has replicas"
        steps = [
            (model.table.units, model.added_s(plan, mesh, each, network))
            for model, each in zip(models, times, strict=True)
        ]
        found.append(fit_work(name, steps))
    stages = _Model(task, _Size(max(ranks, _SIZES[1].units), 1, 16))
    own = stages.times(device)
    for text in _PIPELINES:
        plan = ParallelPlan.parse(f"pp={ranks},microbatches={_MICROBATCHES * ranks},{text}")
        name = pass_runtime(plan)
        assert name is not None, "it has stages"
        added_s = stages.added_s(plan, build_mesh(plan, device), own, network)
        # Each of a step is a pass of one rank after another: those until the pipeline is full, too.
        in_turn = 2 * (plan.microbatches + (ranks - 1 if plan.flush else 0))
        found.append(RuntimeWork(name, pass_s=max(0.0, added_s) / in_turn))
    return found


class _Noise(ImageClassifier):
    """Classification of vectors that need no preparation."""

    reads_ahead = False

    def read(
        self,
        samples: Samples,
        indices: NDArray[np.int64],
        seed: int,  # noqa: ARG002 - the interface's, as the next
        epoch: int,  # noqa: ARG002
    ) -> tuple[Tensor, ...]:
        """Return the vectors [batch, feature] with ``indices`` [batch]."""
        return (torch.from_numpy(samples.inputs[indices]),)

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return the vectors [batch, feature]."""
        return stored[0]

    def evaluation(self, stored: NDArray[np.float32]) -> Tensor:
        """Return the vectors [batch, feature]."""
        return torch.from_numpy(stored)


class _Model:
    """A small model: its chain, anew for each use, and its units as projections see them."""

    def __init__(self, task: Task, size: _Size) -> None:
        self._task = replace(
            task,
            units=tuple(f"units.{number}" for number in range(size.units)),
            optimizer=replace(task.optimizer, lr=0.0, end_lr=0.0),
        )
        self._size = size
        count = size.layers * size.features * (size.features + 1)
        self.table = unit_tables.UnitTable(
            "",
            tuple(
                unit_tables.Unit(name, 1.0, count, size.features, 0, tensors=2 * size.layers)
                for name in self._task.units
            ),
            size.features,
        )

    def times(self, device: torch.device) -> UnitTimes:
        """Return the times of the units without parallelism; a collective."""
        profiler = UnitProfiler(self._chain(), self._task, device)
        meet = partial(most_of_ranks, device=device)
        (found,) = profiler.measure([_SAMPLES], steps=_STEPS - _FIRST, meet=meet)
        return mean_of_ranks(found, device)

    def added_s(self, plan: ParallelPlan, mesh: Mesh, times: UnitTimes, network: Network) -> float:
        """Return by how much a step of ``plan`` is longer than projected; a collective."""
        batch = _SAMPLES * plan.dp * plan.microbatches
        task = replace(
            self._task,
            training=replace(self._task.training, global_batch_size=batch),
            data=replace(self._task.data, train_samples=batch * _STEPS),
        )
        projected = project(
            plan,
            self.table,
            lambda _: times,
            network,
            global_batch_size=batch,
            optimizer=task.optimizer.name,
            clips=task.optimizer.clip_norm > 0,
        )
        trainer = Trainer(self._chain(), task, plan, mesh, 0)
        trainer.warm_up()
        vectors = np.zeros((batch * _STEPS, self._size.features), np.float32)
        samples = Samples(vectors, np.zeros(len(vectors), np.int64))
        begins_s: list[float] = []
        dist.barrier()
        trainer.train(
            TrainingData(
                samples, task, 0, Block(1, 1), lambda: begins_s.append(time.perf_counter())
            )
        )
        dist.barrier()
        steps_s = np.diff(begins_s[_FIRST:]).tolist()
        return most_of_ranks(median_of_means(steps_s), mesh.device) - projected.step_s

    def _chain(self) -> Chain:
        return chain_of(self._task, 0, self._build)

    def _build(self, task: Task) -> Chain:
        size = self._size
        units = (
            Unit(
                name,
                nn.Sequential(
                    *(nn.Linear(size.features, size.features) for _ in range(size.layers))
                ),
            )
            for name in task.units
        )
        return Chain(tuple(units), _Noise(task), self._example)

    def _example(self, batch: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, self._size.features), torch.zeros(batch, dtype=torch.int64)
