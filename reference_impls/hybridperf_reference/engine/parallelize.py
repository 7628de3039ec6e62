"""Apply a plan's parallelism to a chain, in the order in which the methods compose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from hybridperf_reference.engine.batchnorm import apply_batch_norm, commit_statistics
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.data_parallel import Blocking, DataParallel, Overlapped
from hybridperf_reference.engine.gradients import reduce_partial_gradients
from hybridperf_reference.engine.mesh import uses_fsdp
from hybridperf_reference.engine.precision import DTYPES, apply_precision
from hybridperf_reference.engine.recompute import apply_recompute
from hybridperf_reference.engine.rng import draws_random_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Chain, Probe, Unit
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.rng import RngStreams
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["Part", "build_data_parallel", "finalize_gradients", "parallelize"]


@dataclass(frozen=True, slots=True)
class Part:
    """The units of a chain that one rank holds, and the stages made of them."""

    units: tuple[Unit, ...]
    stage: Stage  #: all of ``units``; owner of parameters, buffers and names
    modules: tuple[nn.Module, ...]  #: the rank's stages, wrapped for training
    edges: tuple[Tensor, ...]  #: a sample [...] before each stage and after the last


def build_data_parallel(plan: ParallelPlan, mesh: Mesh, timer: StepTimer) -> DataParallel:
    """Return the data-parallel strategy of ``plan``."""
    if plan.dp == 1:
        return DataParallel(plan, mesh, timer)
    if plan.sync == "blocking":
        return Blocking(plan, mesh, timer)
    if uses_fsdp(plan):  # with a shard axis of size 1 it replicates what tp splits
        # Imported lazily: FSDP takes seconds.
        from hybridperf_reference.engine.sharding import Sharded

        return Sharded(plan, mesh, timer)
    return Overlapped(plan, mesh, timer)


def parallelize(
    chain: Chain,
    cuts: Sequence[slice],
    probe: Probe,
    *,
    plan: ParallelPlan,
    mesh: Mesh,
    replicas: DataParallel,
    streams: RngStreams,
) -> Part:
    """Build this rank's part of ``chain``, with one slice of units in ``cuts`` per stage.

    Units are changed in place, in this order: tensor parallelism and BatchNorm mode change layers;
    precision, compilation and recomputation wrap ``forward``; the data-parallel strategy wraps
    whole stages. Seeding for random numbers is inside recomputation, so that a repeated pass
    repeats them, and counting of micro-batches outside. Units of other ranks are moved to the meta
    device.
    """
    held = [cuts[number] for number in plan.stages_of(mesh.pp_rank)]
    numbers = [number for cut in held for number in range(cut.start, cut.stop)]
    boundaries, where = probe.boundaries, probe.inputs.device
    for number in numbers:
        chain.units[number].module.to(mesh.device)
    drawing = [
        number
        for number in numbers
        if draws_random_numbers(
            probe.names[number],
            probe.modules[number],
            torch.zeros(2, *boundaries[number].shape, dtype=boundaries[number].dtype, device=where),
        )
    ]
    of_tokens: list[int] = []  # units that hold only some of a sample's tokens
    if plan.tp > 1:
        # Imported lazily, as below: torch.distributed.tensor takes seconds.
        from hybridperf_reference.engine.tensor import (
            apply_tensor_parallelism,
            enter_split_regions,
            sequence_parts,
        )

        apply_tensor_parallelism(chain.units, boundaries, numbers, plan=plan, mesh=mesh)
        boundaries = sequence_parts(chain.units, boundaries, plan=plan, mesh=mesh)
        of_tokens = [n for n in numbers if plan.sp and chain.units[n].shares_tokens]
        for number in drawing:
            enter_split_regions(chain.units[number], streams, tokens=number in of_tokens)
    parts = [chain.units[cut] for cut in held]
    units = tuple(unit for part in parts for unit in part)
    apply_batch_norm(units, plan=plan, mesh=mesh)
    apply_precision(units, dtype=DTYPES[plan.precision], device=mesh.device)
    if plan.compile:
        from hybridperf_reference.engine.compilation import apply_compile

        apply_compile(units)
    modules_drawing = {n: u.module for n, u in zip(numbers, units, strict=True) if n in drawing}
    streams.seed_passes(modules_drawing, split=of_tokens)
    apply_recompute(units, every=plan.recompute)
    streams.count_passes(modules_drawing)
    modules = tuple(replicas.wrap(Stage(part), part) for part in parts)
    edges = (*(boundaries[cut.start] for cut in cuts), boundaries[-1])
    names = {unit.name for unit in units}
    for unit in chain.units:
        if unit.name not in names:
            unit.module.to("meta")  # its weights are on other ranks
    return Part(units, Stage(units), modules, edges)


def finalize_gradients(part: Part, *, plan: ParallelPlan, mesh: Mesh) -> None:
    """Complete gradients within a replica, after the last backward pass of a step.

    Reduce partial sums over tp, and update the running statistics of deferred BatchNorm.
    """
    if plan.tp > 1:
        reduce_partial_gradients(part.stage.parameters())
    if plan.sp:
        from hybridperf_reference.engine.tensor import sum_token_gradients

        sum_token_gradients(part.units, mesh=mesh)
    if plan.bn == "deferred":
        commit_statistics(part.stage)
