"""Sharded data parallelism (ZeRO) with FSDP2."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from hybridperf_reference.engine.data_parallel import DataParallel
from hybridperf_reference.engine.gradients import reach_all_parameters
from hybridperf_reference.engine.precision import (
    DTYPES,
    is_computed_narrow,
    normalization_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Stage, Unit
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["Sharded"]


class Sharded(DataParallel):
    """Shard parameters, unit by unit, over the mesh axis ``shard``; replicate over ``replicate``.

    ZeRO (Rajbhandari et al. 2020) with FSDP2. Optimizer state is always sharded; ``zero=1`` keeps
    parameters and gradients unsharded for a step, ``zero=2`` parameters for a forward and backward
    pass, ``zero=3`` parameters of one unit at a time. FSDP2 does not support scalar parameters;
    they are replicated. So are parameters that units share, since each unit is sharded by itself,
    as if its parameters were its own.

    In bf16 and fp16, units that autocast computes in that precision are all-gathered in it, which
    rounds weights as autocast would. Their normalization layers compute in fp32, and FSDP2 reduces
    gradients of one data type per unit, so the parameters of these layers are replicated too.
    """

    def __init__(self, plan: ParallelPlan, mesh: Mesh, timer: StepTimer) -> None:
        super().__init__(plan, mesh, timer)
        self._replicated: list[nn.Parameter] = []

    def wrap(self, stage: Stage, units: Sequence[Unit]) -> nn.Module:
        """Return ``stage`` with its units sharded by FSDP2, in place."""
        self._stages.append(stage)
        axes, plan = self._mesh.axes, self._plan
        assert axes is not None
        offloads = plan.offload == "cpu"
        # Replicated parameters stay on the device; all offloaded parameters are updated together.
        narrows = plan.precision in {"bf16", "fp16"} and not offloads
        narrow = [unit for unit in units if narrows and is_computed_narrow(unit.module)]
        reduced = torch.bfloat16 if plan.gradients == "bf16" else None
        plain = MixedPrecisionPolicy(reduce_dtype=reduced, cast_forward_inputs=False)
        narrowed = MixedPrecisionPolicy(
            param_dtype=DTYPES[plan.precision],
            reduce_dtype=reduced or torch.float32,
            cast_forward_inputs=False,
        )
        own = {parameter for parameter in stage.parameters() if not parameter.dim()}
        for unit in units:
            own.update(map(unit.module.get_parameter, unit.shared))
        for unit in narrow:
            own.update(normalization_parameters(unit.module))
        self._replicated += [parameter for parameter in stage.parameters() if parameter in own]
        shard = partial(
            fully_shard,
            mesh=axes["replicate", "shard"] if plan.shards < plan.dp else axes["shard"],
            reshard_after_forward=plan.zero == 3,
            # Pinned memory requires an accelerator.
            offload_policy=CPUOffloadPolicy(pin_memory=torch.accelerator.is_available())
            if offloads
            else OffloadPolicy(),
            ignored_params=own,
        )
        for unit in units:
            # FSDP2 requires contiguous parameters; inputs of convolutions stay channels-last.
            module = unit.module.to(memory_format=torch.contiguous_format)
            reach_all_parameters(module)  # FSDP2 reduces existing gradients only
            shard(module, mp_policy=narrowed if unit in narrow else plain)
        shard(stage, mp_policy=plain)
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
        """Average the gradients of replicated parameters over replicas."""
        own = [
            p.grad for p in self._replicated if p.grad is not None
        ]  # frozen parameters have none
        self._average(own, torch.bfloat16 if self._plan.gradients == "bf16" else None)

    def after_change(self) -> None:
        """Discard unsharded weights, which an evaluation leaves unless ``zero=3``."""
        for stage in self._stages:
            for module in stage.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
