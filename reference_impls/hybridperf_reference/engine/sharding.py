"""Sharded data parallelism (ZeRO) with FSDP2."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from hybridperf_reference.engine.data_parallel import DataParallel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from hybridperf_reference.engine.chain import Unit
    from hybridperf_reference.engine.stage import Stage

__all__ = ["Sharded"]


class Sharded(DataParallel):
    """Shard parameters, unit by unit, over the mesh axis ``shard``; replicate over ``replicate``.

    ZeRO (Rajbhandari et al. 2020) with FSDP2. Optimizer state is always sharded; ``zero=1`` keeps
    parameters and gradients unsharded for a step, ``zero=2`` parameters for a forward and backward
    pass, ``zero=3`` parameters of one unit at a time. FSDP2 does not support scalar parameters;
    they are replicated.
    """

    def wrap(self, stage: Stage, units: Sequence[Unit]) -> nn.Module:
        """Return ``stage`` with its units sharded by FSDP2, in place."""
        super().wrap(stage, units)
        axes, plan = self._mesh.axes, self._plan
        assert axes is not None
        # Pinned memory requires an accelerator.
        offloaded = CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())
        shard = partial(
            fully_shard,
            mesh=axes["replicate", "shard"] if plan.shards < plan.dp else axes["shard"],
            reshard_after_forward=plan.zero == 3,
            mp_policy=MixedPrecisionPolicy(
                reduce_dtype=torch.bfloat16 if plan.gradients == "bf16" else None,
                cast_forward_inputs=False,
            ),
            offload_policy=offloaded if plan.offload == "cpu" else OffloadPolicy(),
            ignored_params={parameter for parameter in stage.parameters() if not parameter.dim()},
        )
        for unit in units:
            # FSDP2 requires contiguous parameters; inputs of convolutions stay channels-last.
            shard(unit.module.to(memory_format=torch.contiguous_format))
        shard(stage)
        return stage

    def micro_batch(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Configure gradient synchronization and resharding for the next backward pass."""
        if self._plan.microbatches > 1:  # else FSDP2's defaults apply
            each = self._plan.zero >= 2
            for module in self._stages:
                assert isinstance(module, FSDPModule)
                module.set_requires_gradient_sync(last or each)
                module.set_reshard_after_backward(last or each)
                # The all-reduce over replicas of a shard is needed only once per step.
                module.set_requires_all_reduce(last)
                module.set_is_last_backward(last)
        return contextlib.nullcontext()

    def after_backward(self) -> None:
        """Average the gradients of scalar parameters over replicas."""
        parameters = [p for stage in self._stages for p in stage.parameters() if not p.dim()]
        self._average([p.grad for p in parameters if p.grad is not None])
