"""Sharding: replicas that each keep a part of what all of them need (ZeRO)."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from reference_impls.engine.chain import Unit
    from reference_impls.engine.mesh import Mesh
    from reference_impls.engine.stage import Stage
    from suite.plan import ParallelPlan

__all__ = ["apply_sharding", "synchronise"]


def apply_sharding(stage: Stage, units: Sequence[Unit], *, plan: ParallelPlan, mesh: Mesh) -> Stage:
    """Return ``stage`` with its parameters sharded over the axis shard, unit by unit.

    Rajbhandari et al. 2020, by FSDP2. Optimiser state is always sharded; ``zero=1`` keeps whole
    parameters and gradients through a step, ``zero=2`` whole parameters through a pass, ``zero=3``
    those of one unit at a time. Over the axis replicate, shards are copies.
    """
    assert mesh.axes is not None
    # Shards of one rank are whole: so FSDP2 replicates what tp has split, which DDP cannot.
    hybrid = plan.shards < plan.dp
    # Only an accelerator can pin the host's memory.
    offloaded = CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())
    shard = partial(
        fully_shard,
        mesh=mesh.axes["replicate", "shard"] if hybrid else mesh.axes["shard"],
        reshard_after_forward=plan.zero == 3,
        offload_policy=offloaded if plan.offload == "cpu" else OffloadPolicy(),
    )
    for unit in units:
        # FSDP2 shards no other layout; convolutions take channels-last inputs all the same.
        shard(unit.module.to(memory_format=torch.contiguous_format))
    shard(stage)
    return stage


def synchronise(module: nn.Module, *, zero: int, last: bool) -> None:
    """Say what the next backward pass, which may be the step's last, does with its gradients."""
    if not isinstance(module, FSDPModule):
        return
    each = zero >= 2
    module.set_requires_gradient_sync(last or each)
    module.set_reshard_after_backward(last or each)
    # Replicas of shards need their sum once a step.
    module.set_requires_all_reduce(last)
    with contextlib.suppress(AttributeError):
        module.set_is_last_backward(last)
