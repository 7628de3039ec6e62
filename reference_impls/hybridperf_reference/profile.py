"""Profile the training of a task on this machine: ``-m hybridperf_reference.profile TASK OUT``.

``TASK`` is the file of a task. Every rank runs it, under torchrun or the harness's launcher; rank 0
writes the profile, a JSON file, to ``OUT``.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from hybridperf.errors import UserError
from hybridperf.plan import SCHEDULES, ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection import units as unit_tables
from hybridperf.projection.profile import Profile
from hybridperf.projection.search import Work
from hybridperf.run.access import TrainingData
from hybridperf.tasks.data import Samples, load
from hybridperf.tasks.registry import read_task
from hybridperf.tasks.task import Block
from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.engine.compilation import disable_compiler
from hybridperf_reference.engine.gradient_reducer import low_rank_elements
from hybridperf_reference.engine.input import Input, ReadingRole
from hybridperf_reference.engine.mesh import Groups, build_mesh, join_ranks, own_rank
from hybridperf_reference.engine.parallelize import parameter_groups
from hybridperf_reference.engine.precision import set_float32_math
from hybridperf_reference.engine.profile import (
    UnitProfiler,
    max_over_ranks,
    mean_over_ranks,
    measure_averaging_work,
    measure_transfers,
    median_of_means,
)
from hybridperf_reference.engine.timing import StepTimer
from hybridperf_reference.engine.trainer import Trainer
from hybridperf_reference.images.objective import ImageClassifier
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hybridperf.projection.network import Network
    from hybridperf.projection.units import UnitTimes
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Objective
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.models import Build

__all__ = ["main", "measure", "profile_on"]

_BATCHES = 15


def main(build: Build | None = None) -> None:
    """Measure units, links and runtimes on all ranks, and write the profile.

    ``build`` overrides the task's model family.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path, help="file of the task")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--precision", choices=FIELDS["precision"].words, default="fp32")
    parser.add_argument("--microbatches", type=int, nargs="+", required=True, metavar="SAMPLES")
    parser.add_argument("--steps", type=int, required=True, help="steps of each micro-batch")
    options = parser.parse_args()
    profile = measure(
        read_task(options.task), options.precision, options.microbatches, options.steps, build
    )
    if profile is not None:
        options.out.write_text(json.dumps(profile.as_table(), allow_nan=False) + "\n")


def measure(
    task: Task,
    precision: str,
    microbatches: Sequence[int],
    steps: int,
    build: Build | None = None,
) -> Profile | None:
    """Return the profile of ``task`` on rank 0, None on other ranks."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    with join_ranks(ParallelPlan(dp=ranks)) as device:
        return profile_on(device, task, precision, microbatches, steps, build)


def profile_on(
    device: torch.device,
    task: Task,
    precision: str,
    microbatches: Sequence[int],
    steps: int,
    build: Build | None = None,
) -> Profile | None:
    """Return the profile of `measure`, on initialized ranks; a collective."""
    disable_compiler()
    set_float32_math(tf32=precision == "tf32")
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    chain = chain_of(task, 0, build)
    profiler = UnitProfiler(chain, task, device, precision=precision)
    alone_s = None
    middle = sorted(microbatches)[len(microbatches) // 2]
    if ranks > 1:
        if own_rank() == 0:
            alone_s = _step_s(*profiler.measure([middle], steps=steps))
        dist.barrier()
    measured = profiler.measure(
        sorted(microbatches), steps=steps, meet=partial(max_over_ranks, device=device)
    )
    times = [mean_over_ranks(each, device) for each in measured]
    together_s = next(_step_s(each) for each in times if each.microbatch == middle)
    train = partial(profiler.step, middle, marked=False)
    transfers = measure_transfers(device) if ranks > 1 else []
    input_s, target_s = _reading_s(task, chain.objective, device, train)
    profile = Profile(
        task=task.name,
        precision=precision,
        ranks=ranks,
        threads=torch.get_num_threads(),
        library="gloo" if device.type == "cpu" else "nccl",
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        unit_names=tuple(unit.name for unit in chain.units),
        unit_times=tuple(times),
        contention=together_s / alone_s if alone_s else 1.0,
        transfers=tuple(transfers),
        input_s=input_s,
        target_s=target_s,
    )
    if ranks > 1:
        work = measure_averaging_work(device, train)
        profile = replace(profile, averaging_work=work)
        pass_s, bucket_s = _measure_runtimes(chain, task, profile.network(ranks), device, steps)
        profile = replace(profile, pass_s=pass_s, bucket_s=bucket_s)
    return None if own_rank() else profile


def _reading_s(
    task: Task, objective: Objective, device: torch.device, train: Callable[[], object]
) -> tuple[float, float]:
    """Return the seconds of reading the inputs and the targets of a sample, in training.

    ``train`` trains a step, for realistic caches. Both are 0 where worker processes read ahead, or
    the data are not on this machine.
    """
    if objective.reads_ahead:
        return 0.0, 0.0
    try:
        samples = load(task.data).train
    except UserError:
        return 0.0, 0.0
    count = max(1, task.training.global_batch_size // 2)  # samples of one of two replicas
    data = TrainingData(samples, task, 0, Block(1, 1), lambda: None)
    found = []
    for role in (ReadingRole(targets=False), ReadingRole(inputs=False)):
        batches = Input(objective, device, role).train(data, slice(0, count), StepTimer(device))
        seconds = []
        for _ in range(min(_BATCHES, len(task.steps(data.block)))):
            train()
            start = time.perf_counter()
            next(batches)
            seconds.append(time.perf_counter() - start)
        found.append(statistics.median(seconds) / count)
    inputs_s, targets_s = found
    return inputs_s, targets_s


def _step_s(times: UnitTimes) -> float:
    return sum(times.forward_s) + sum(times.backward_s) + times.loss_s + sum(times.update_s)


_TURNS: Final = 3  # turns, for a median: processes slow down and recover
_MOST_STEPS: Final = 10  # most steps measured in a turn
_FIRST: Final = 3  # first step measured: a delayed plan is steady then
_MICROBATCHES: Final = 4  # micro-batches for each rank of a pipeline
_AVERAGING: Final = (
    *("sync=blocking", "sync=overlapped", "zero=1", "staleness=1"),
    "gradients=powersgd",
)
_PIPELINES: Final = (
    *(f"schedule={name}" for name in SCHEDULES),
    "staleness=1",
    "staleness=1,flush=off",
)


@dataclass(frozen=True, slots=True)
class _Size:
    """Size of a synthetic model: ``units`` equal units of ``layers`` linear layers."""

    units: int
    layers: int
    features: int
    samples: int = 8  #: of a micro-batch

    def modules(self) -> list[nn.Module]:
        """Return the units of a new model of this size."""
        return [
            nn.Sequential(*(nn.Linear(self.features, self.features) for _ in range(self.layers)))
            for _ in range(self.units)
        ]


@dataclass(frozen=True, slots=True)
class _Parameters:
    """Parameters of a synthetic model, like ``tensors`` by unit."""

    tensors: tuple[tuple[Tensor, ...], ...]
    features: int = 16
    samples: int = 8

    @classmethod
    def of(cls, chain: Chain) -> _Parameters:
        """Return the parameters of the first units of ``chain``, up to 2**26 in total."""
        seen: set[Tensor] = set()
        units: list[tuple[Tensor, ...]] = []
        count = 0
        for unit in chain.units:
            own = [each for each in unit.module.parameters() if each.requires_grad]
            new = tuple(each.detach() for each in own if each not in seen)
            count += sum(each.numel() for each in new)
            if units and count > _MOST_PARAMETERS:
                break
            seen.update(own)
            units.append(new)
        return cls(tuple(units))

    def modules(self) -> list[nn.Module]:
        """Return the units of a new model with these parameters."""
        return [_Holder(own) for own in self.tensors]


class _Holder(nn.Module):
    """A unit that sums its parameters, so that nearly all computation is their gradients."""

    def __init__(self, like: Sequence[Tensor]) -> None:
        super().__init__()
        self._held = nn.ParameterList(nn.Parameter(torch.zeros_like(each)) for each in like)

    def forward(self, values: Tensor) -> Tensor:
        """Return ``values`` [sample, feature] with the sum added to the first feature."""
        if not self._held:
            return values
        total = torch.stack([each.sum() for each in self._held]).sum()
        return values + functional.pad(total.view(1), (0, values.shape[-1] - 1))


_MOST_PARAMETERS: Final = 2**26
# Sizes for pipelines: with tiny messages, and with messages of small models.
_STAGED: Final = (_Size(8, 1, 16), _Size(8, 1, 256, samples=64))


def _measure_runtimes(
    chain: Chain, task: Task, network: Network, device: torch.device, steps: int
) -> tuple[float, float]:
    """Time synthetic models on all ranks, and return the overheads missing in projections.

    Seconds per pass of a pipeline, and per gradient collective: medians over schedules, and over
    data-parallel methods. The optimizer is ``task``'s; one model has the parameters of ``chain``.
    ``network`` is the ranks' network without overheads. In each turn at most ``steps`` steps are
    measured. A collective.
    """
    steps = min(steps, _MOST_STEPS)
    ranks = dist.get_world_size()
    staged = [replace(size, units=max(size.units, 2 * ranks)) for size in _STAGED]
    count = _MICROBATCHES * ranks
    averages = [f"dp={ranks},{text}" for text in _AVERAGING]
    pipelined = [f"pp={ranks},microbatches={count},{text}" for text in _PIPELINES]
    averaging = _sides(task, device, steps, [_Parameters.of(chain)], averages)
    pipelines = _sides(task, device, steps, staged, pipelined)
    for _ in range(_TURNS):
        for sides in (averaging, pipelines):
            for model, own in groupby(sides, lambda side: side.model):
                times = model.times()
                for side in own:
                    side.measure(times, network)
    pass_s, bucket_s = (
        max(0.0, statistics.median(side.added_each_s for side in sides))
        for sides in (pipelines, averaging)
    )
    return pass_s, bucket_s


def _sides(
    task: Task,
    device: torch.device,
    steps: int,
    kinds: Sequence[_Size | _Parameters],
    plans: Sequence[str],
) -> list[_Side]:
    """Return a side for each model and plan, grouped by model."""
    parsed, groups = [ParallelPlan.parse(text) for text in plans], Groups()
    models = [_Model(task, kind, steps, device) for kind in kinds]
    meshes = [build_mesh(plan, device, groups) for plan in parsed]
    return [_Side(model, *each) for model in models for each in zip(parsed, meshes, strict=True)]


class _Noise(ImageClassifier):
    """Classification of vectors that need no preparation."""

    reads_ahead = False

    def read(
        self,
        samples: Samples,
        indices: NDArray[np.int64],
        seed: int,  # noqa: ARG002 - the interface's, as below
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
    """A synthetic model: a new chain for each use, and its unit table."""

    def __init__(
        self, task: Task, kind: _Size | _Parameters, steps: int, device: torch.device
    ) -> None:
        self.task = replace(
            task,
            units=tuple(f"units.{number}" for number, _ in enumerate(kind.modules())),
            optimizer=replace(task.optimizer, lr=0.0, end_lr=0.0),
        )
        self.kind, self.steps, self._device = kind, steps, device
        chain = self.chain()
        self.table = unit_tables.UnitTable("", tuple(map(self._row, chain.units)), kind.features)
        self._profiler = UnitProfiler(chain, self.task, device)

    def times(self) -> UnitTimes:
        """Return the times of the units without parallelism; a collective."""
        meet = partial(max_over_ranks, device=self._device)
        (found,) = self._profiler.measure([self.kind.samples], steps=self.steps, meet=meet)
        return mean_over_ranks(found, self._device)

    def chain(self) -> Chain:
        """Build the model."""
        return chain_of(self.task, 0, self._build)

    def _row(self, unit: Unit) -> unit_tables.UnitCounts:
        """Return the row of a unit table."""
        return unit_tables.UnitCounts(
            unit.name,
            1.0,
            tuple(parameter_groups(unit)),
            self.kind.features,
            0,
            low_rank_elements=sum(map(low_rank_elements, unit.module.parameters())),
            is_narrow=True,
        )

    def _build(self, task: Task) -> Chain:
        def example(batch: int) -> tuple[Tensor, Tensor]:
            return torch.randn(batch, self.kind.features), torch.zeros(batch, dtype=torch.int64)

        return Chain(tuple(map(Unit, task.units, self.kind.modules())), _Noise(task), example)


class _Side:
    """A synthetic model in training under a plan, with its projections."""

    def __init__(self, model: _Model, plan: ParallelPlan, mesh: Mesh) -> None:
        self.model, self.plan, self._mesh = model, plan, mesh
        batch = model.kind.samples * plan.dp * plan.microbatches
        samples = batch * (_FIRST + model.steps)
        self._task = replace(
            model.task,
            training=replace(model.task.training, global_batch_size=batch),
            data=replace(model.task.data, train_samples=samples),
        )
        vectors = np.zeros((samples, model.kind.features), np.float32)
        self._samples = Samples(vectors, np.zeros(len(vectors), np.int64))
        self._trainer = Trainer(model.chain(), self._task, plan, mesh, 0)
        self._trainer.warm_up()
        self._added_s: list[float] = []
        self._count = 1.0

    @property
    def added_each_s(self) -> float:
        """Return the measured minus the projected step time, per pass or collective.

        Only passes on the critical path count.
        """
        return statistics.median(self._added_s) / self._count

    def measure(self, times: UnitTimes, network: Network) -> None:
        """Train some steps, and project them from ``times``; a collective."""
        begins_s: list[float] = []
        block = Block(len(self._added_s) + 1, 1)
        dist.barrier()
        self._trainer.train(
            TrainingData(
                self._samples, self._task, 0, block, lambda: begins_s.append(time.perf_counter())
            )
        )
        dist.barrier()
        steps_s = np.diff(begins_s[_FIRST:]).tolist()
        measured_s = max_over_ranks(median_of_means(steps_s), self._mesh.device)
        projected_s = self._projected_s(times, network)
        self._added_s.append(measured_s - projected_s)
        pipeline = self.plan.pp > 1
        longer = replace(network, pass_s=1.0) if pipeline else replace(network, bucket_s=1.0)
        self._count = self._projected_s(times, longer) - projected_s

    def _projected_s(self, times: UnitTimes, network: Network) -> float:
        work = Work.of_task(self._task, self.model.table, lambda _: times, network)
        return work.project(self.plan).step_s


if __name__ == "__main__":
    main()
