"""Apply a plan's methods to a chain, in the one order in which they fit together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_impls.engine.batchnorm import apply_batch_norm, commit_statistics
from reference_impls.engine.gradients import finish_gradients
from reference_impls.engine.precision import DTYPES, apply_precision
from reference_impls.engine.recompute import apply_recompute
from reference_impls.engine.replicate import apply_replication, average_gradients
from reference_impls.engine.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from reference_impls.engine.chain import Chain, Unit
    from reference_impls.engine.mesh import Mesh
    from reference_impls.engine.timing import StepTimer
    from suite.plan import ParallelPlan

__all__ = ["Part", "parallelize", "settle"]


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds of a chain."""

    units: tuple[Unit, ...]
    stage: Stage  #: all of ``units``; what has parameters, statistics and names
    modules: tuple[nn.Module, ...]  #: each of the rank's stages, as it is called in training
    edges: tuple[Tensor, ...]  #: one sample before each stage of the pipeline, and after the last


def parallelize(chain: Chain, cuts: Sequence[slice], *, plan: ParallelPlan, mesh: Mesh) -> Part:
    """Return this rank's part of ``chain``, cut into stages at ``cuts``.

    BatchNorm's mode and tensor parallelism change layers; precision, compilation and recomputation
    wrap a unit, the last outermost; sharding and replication take stages of finished units.
    """
    boundaries = chain.boundaries()
    held = [cuts[number] for number in plan.stages_of(mesh.stage)]
    for cut in held:
        for unit in chain.units[cut]:
            unit.module.to(mesh.device)
    if plan.tp > 1:
        # Imported where it is needed, as below: torch's distributed parts take seconds.
        from reference_impls.engine.tensor import apply_tensor_parallelism, sequence_parts

        numbers = [number for cut in held for number in range(cut.start, cut.stop)]
        apply_tensor_parallelism(chain.units, boundaries, numbers, plan=plan, mesh=mesh)
        boundaries = sequence_parts(chain.units, boundaries, plan=plan, mesh=mesh)
    parts = [apply_batch_norm(chain.units[cut], plan=plan, mesh=mesh) for cut in held]
    units = tuple(unit for part in parts for unit in part)
    apply_precision(units, dtype=DTYPES[plan.precision], device=mesh.device)
    if plan.compile:
        from reference_impls.engine.compilation import apply_compile

        apply_compile(units)
    apply_recompute(units, every=plan.recompute)
    modules = tuple(_spread(Stage(part), part, plan=plan, mesh=mesh) for part in parts)
    edges = (*(boundaries[cut.start] for cut in cuts), boundaries[-1])
    names = {unit.name for unit in units}
    for unit in chain.units:
        if unit.name not in names:
            unit.module.to("meta")  # its weights lie on other ranks
    return Part(units, Stage(units), modules, edges)


def _spread(stage: Stage, units: tuple[Unit, ...], *, plan: ParallelPlan, mesh: Mesh) -> nn.Module:
    if plan.dp == 1 or plan.sync == "blocking":
        return stage
    if plan.zero or plan.tp > 1:
        # FSDP2 over shards of one rank replicates what tp has split; DDP cannot.
        from reference_impls.engine.sharding import apply_sharding

        return apply_sharding(stage, units, plan=plan, mesh=mesh)
    return apply_replication(stage, mesh=mesh)


def settle(part: Part, *, plan: ParallelPlan, mesh: Mesh, timer: StepTimer) -> None:
    """Do what follows a step's last backward pass, so that the optimiser may be called."""
    if plan.tp > 1:
        finish_gradients(part.stage.parameters())
    if plan.sp:
        from reference_impls.engine.tensor import sum_token_gradients

        sum_token_gradients(part.units, mesh=mesh)
    if plan.sync == "blocking":
        with timer.part("compute"), timer.part("exposed_communication"):
            average_gradients(part.stage, mesh=mesh)
    if plan.bn == "deferred":
        commit_statistics(part.stage)
