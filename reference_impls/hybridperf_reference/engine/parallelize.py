"""Partition a chain into stages, and apply a plan's methods in order of composition."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from hybridperf.projection import units as unit_tables
from hybridperf.projection.partition import stage_cuts
from hybridperf_reference.engine.batchnorm import apply_batch_norm, commit_statistics
from hybridperf_reference.engine.chain import Stage
from hybridperf_reference.engine.data_parallel import Blocking, DataParallel, Overlapped
from hybridperf_reference.engine.gradients import reduce_partial_gradients
from hybridperf_reference.engine.mesh import uses_fsdp
from hybridperf_reference.engine.precision import DTYPES, apply_precision, normalization_parameters
from hybridperf_reference.engine.rng import draws_random_numbers
from hybridperf_reference.engine.ties import SharedParameters, copy_shared_parameters
from hybridperf_reference.engine.tokens import split_tokens, sum_token_gradients, token_axis

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Chain, Probe, Unit
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.rng import RngStreams
    from hybridperf_reference.engine.timing import StepTimer

__all__ = [
    "RankStages",
    "apply_recompute",
    "build_data_parallel",
    "chain_units",
    "finalize_gradients",
    "forward_flops",
    "parallelize",
    "parameter_groups",
    "stage_slices",
]


@dataclass(frozen=True, slots=True)
class RankStages:
    """The units and stages of one rank."""

    units: tuple[Unit, ...]
    stage: Stage  #: module of all ``units``; owner of parameters, buffers and names
    modules: tuple[nn.Module, ...]  #: the rank's stages, wrapped for training
    edges: tuple[Tensor, ...]  #: a sample's activations [...] before each stage and after the last
    edge_ranks: tuple[int, ...]  #: ranks over which the samples of each edge are split
    shared: SharedParameters  #: parameters of which other stages have copies


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
) -> RankStages:
    """Build this rank's stages of ``chain``; ``cuts`` has a slice of units for each stage.

    Units are changed in place, in this order: stages get copies of shared parameters; tensor
    parallelism, the split of tokens and BatchNorm mode change layers; precision, compilation and
    recomputation wrap ``forward``; the data-parallel strategy wraps whole stages. Seeding is inside
    recomputation, which then repeats random numbers; counting of micro-batches is outside. Units of
    other ranks are moved to the meta device.
    """
    held = [cuts[number] for number in plan.stages_of(mesh.pp_rank)]
    numbers = [number for cut in held for number in range(cut.start, cut.stop)]
    boundaries, where = probe.boundaries, probe.inputs.device
    for number in numbers:
        chain.units[number].module.to(mesh.device)
    parts = [chain.units[cut] for cut in held]
    copy_shared_parameters(parts)
    drawing = [
        number
        for number in numbers
        if draws_random_numbers(
            probe.names[number],
            probe.modules[number],
            torch.zeros(2, *boundaries[number].shape, dtype=boundaries[number].dtype, device=where),
        )
    ]
    # Units that hold only some of a sample's tokens, or features.
    divides = plan.tensor != "1d" or token_axis(plan) is not None
    of_parts = [n for n in numbers if divides and chain.units[n].shares_tokens]
    sample_ranks = [1] * len(boundaries)  # over which samples are split before each unit
    if plan.tensor != "1d":
        # Imported lazily, as below: torch.distributed.tensor takes seconds.
        from hybridperf_reference.engine.tensor_nd import apply_arranged_parallelism, arranged_parts

        apply_arranged_parallelism(chain.units, numbers, plan=plan, mesh=mesh)
        boundaries, sample_ranks = arranged_parts(chain.units, boundaries, plan=plan)
    elif plan.tp > 1:
        from hybridperf_reference.engine.tensor import (
            apply_tensor_parallelism,
            enter_split_regions,
        )

        apply_tensor_parallelism(chain.units, boundaries, numbers, plan=plan, mesh=mesh)
        for number in drawing:
            enter_split_regions(chain.units[number], streams, tokens=plan.sp and number in of_parts)
    boundaries = split_tokens(chain.units, boundaries, numbers, plan=plan, mesh=mesh)
    units = tuple(unit for part in parts for unit in part)
    apply_batch_norm(units, plan=plan, mesh=mesh)
    apply_precision(units, dtype=DTYPES[plan.precision], device=mesh.device)
    if plan.compile:
        from hybridperf_reference.engine.compilation import apply_compile

        apply_compile(units)
    modules_drawing = {n: u.module for n, u in zip(numbers, units, strict=True) if n in drawing}
    streams.seed_passes(modules_drawing, split=of_parts)
    apply_recompute(units, every=plan.recompute)
    streams.count_passes(modules_drawing)
    modules = tuple(replicas.wrap(Stage(part), part) for part in parts)
    starts = [*(cut.start for cut in cuts), len(chain.units)]
    edges = tuple(boundaries[start] for start in starts)
    edge_ranks = tuple(sample_ranks[start] for start in starts)
    names = {unit.name for unit in units}
    for unit in chain.units:
        if unit.name not in names:
            unit.module.to("meta")  # its weights are on other ranks
    shared = SharedParameters(chain.units, cuts, plan=plan, mesh=mesh)
    return RankStages(units, Stage(units), modules, edges, edge_ranks, shared)


def finalize_gradients(part: RankStages, *, plan: ParallelPlan, mesh: Mesh) -> None:
    """Complete gradients within a replica, after the last backward pass of a step.

    Reduce partial sums over tp and over ranks with other tokens, and update the running statistics
    of deferred BatchNorm.
    """
    if plan.tp > 1:
        reduce_partial_gradients(part.stage.parameters())
    sum_token_gradients(part.units, plan=plan, mesh=mesh)
    if plan.bn == "deferred":
        commit_statistics(part.stage)


def chain_units(chain: Chain, probe: Probe) -> list[unit_tables.UnitCounts]:
    """Return the unit costs of ``chain`` that cuts depend on.

    Stages begin only at floating-point activations, since gradients must flow. Saved activations
    are not counted.
    """
    return [
        unit_tables.UnitCounts(
            unit.name,
            forward_flops=flops,
            parameter_groups=tuple(parameter_groups(unit)),
            output_elements=after.numel(),
            kept_elements=0,
            begins_stage=before.is_floating_point(),
        )
        for unit, flops, (before, after) in zip(
            chain.units, forward_flops(probe), pairwise(probe.boundaries), strict=True
        )
    ]


def parameter_groups(unit: Unit) -> Iterator[unit_tables.Parameters]:
    """Yield the parameters of ``unit``, grouped by kind and number of rows.

    A parameter that other units share is a group by itself.
    """
    normalization = set(normalization_parameters(unit.module))
    groups: dict[tuple[unit_tables.ParameterKind, int, str], list[int]] = {}
    for name, parameter in unit.module.named_parameters():
        layer, _, own = name.rpartition(".")
        kind: unit_tables.ParameterKind = "normalization" if parameter in normalization else "other"
        if split := unit.split.get(layer):
            kind = split
            if own == "bias":
                kind = "column_bias" if split == "column" else "row_bias"
        rows = len(parameter) if parameter.dim() else 0
        key = (kind, rows, unit.shared.get(name, ""))
        groups.setdefault(key, []).append(parameter.numel())
    for (kind, rows, shared), elements in groups.items():
        yield unit_tables.Parameters(kind, rows, sum(elements), len(elements), shared)


def stage_slices(plan: ParallelPlan, units: Sequence[unit_tables.UnitCounts]) -> list[slice]:
    """Return the slice of ``units`` of each stage of ``plan``.

    Raises:
        UserError: exit status 2 if a stage would begin at an invalid boundary.
    """
    edges = (0, *stage_cuts(plan, units), len(units))
    return [slice(first, last) for first, last in pairwise(edges)]


def forward_flops(probe: Probe) -> list[int]:
    """Return the FLOPs of each unit's forward pass on one sample, by torch's FlopCounterMode."""
    flops = []
    outputs = probe.inputs
    for module in probe.modules:
        # torch 2.11 does not count the fused kernel of attention on the CPU.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as count:
            outputs = module.eval()(outputs)
        flops.append(count.get_total_flops())
    return flops


def apply_recompute(units: Sequence[Unit], *, every: int) -> None:
    """Recompute the activations of every ``every``-th unit in backward; 0 for none.

    Activation checkpointing (Chen et al. 2016). The recomputation uses the buffers from before the
    first pass, and leaves them unchanged.
    """
    for unit in units[::every] if every else ():
        unit.module.forward = partial(
            checkpoint,
            unit.module.forward,
            use_reentrant=False,
            context_fn=partial(_contexts, unit.module),
        )


_Context = contextlib.AbstractContextManager[None]


def _contexts(module: nn.Module) -> tuple[_Context, _Context]:
    """Return the contexts for the first pass of ``module`` and for its recomputation."""
    kept: list[dict[str, Tensor]] = []
    return _save_buffers(module, kept), _use_saved_buffers(module, kept)


@contextlib.contextmanager
def _save_buffers(module: nn.Module, kept: list[dict[str, Tensor]]) -> Iterator[None]:
    """Copy the buffers of ``module`` into ``kept`` before a training pass."""
    if torch.is_grad_enabled() and module.training:
        kept += [
            {name: buffer.clone() for name, buffer in _buffers(part)} for part in module.modules()
        ]
    yield


@contextlib.contextmanager
def _use_saved_buffers(module: nn.Module, kept: list[dict[str, Tensor]]) -> Iterator[None]:
    """Swap the buffers in ``kept`` into ``module`` for the duration of a recomputation."""
    parts = list(module.modules())
    newest = [dict(_buffers(part)) for part in parts]
    try:
        for part, buffers in zip(parts, kept, strict=False):
            part._buffers.update(buffers)  # noqa: SLF001 - swapped without a copy
        yield
    finally:
        for part, buffers in zip(parts, newest, strict=True):
            part._buffers.update(buffers)  # noqa: SLF001


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return module.named_buffers(recurse=False)
