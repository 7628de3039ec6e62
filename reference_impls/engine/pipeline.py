"""Pipeline parallelism by ``torch.distributed.pipelining``: stages, schedules, evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from reference_impls.engine.execute import bare, time_exposed_communication

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from reference_impls.engine.mesh import Mesh
    from reference_impls.engine.timing import StepTimer
    from suite.plan import ParallelPlan

__all__ = ["Pipeline"]

_SCHEDULES: dict[str | None, Callable[..., Any]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
    "interleaved": ScheduleInterleaved1F1B,
    "zbv": ScheduleZBVZeroBubble,
}


class Pipeline:
    """Run one rank's stages of a pipeline.

    Shapes are stated, not inferred: inference would run the stage on uninitialised memory and
    leave that in BatchNorm's statistics (torch 2.11 to 2.13).
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        loss: Callable[[Tensor, Tensor], Tensor],
        plan: ParallelPlan,
        mesh: Mesh,
        timer: StepTimer,
        *,
        edges: Sequence[Tensor],
        replica_batch: int,
    ) -> None:
        self._mesh, self._edges, self._timer = mesh, edges, timer
        self._numbers = plan.stages_of(mesh.stage)
        self._holders = {s: rank for rank in range(plan.pp) for s in plan.stages_of(rank)}
        self._last = plan.pipeline_stages - 1
        self._modules = dict(zip(self._numbers, map(bare, modules), strict=True))
        size = replica_batch // plan.microbatches
        stages = [
            self._stage(module, number, size)
            for number, module in zip(self._numbers, modules, strict=True)
        ]
        one_each = plan.stages == 1
        self._train = _SCHEDULES[plan.schedule](
            stages[0] if one_each else stages, plan.microbatches, loss_fn=loss
        )

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Compute the gradients of the mean loss: first stage reads inputs, last stage targets."""
        arguments = (inputs,) if 0 in self._numbers else ()
        own = targets if self._last in self._numbers else None
        self._train.step(*arguments, target=own, return_outputs=False)

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Pass ``inputs`` from stage to stage; return the outputs where the last one is."""
        values, own, group = inputs, self._mesh.stage, self._mesh.pp_group
        for number, module in self._modules.items():
            edge = self._edges[number]
            if number > 0 and self._holders[number - 1] != own:
                shape = (len(inputs), *edge.shape)
                values = torch.empty(shape, dtype=edge.dtype, device=inputs.device)
                dist.recv(values, group=group, group_src=self._holders[number - 1])
            values = module(values)
            if number < self._last and self._holders[number + 1] != own:
                dist.send(values, group=group, group_dst=self._holders[number + 1])
        return values if self._last in self._modules else None

    def _stage(self, module: nn.Module, number: int, size: int) -> _TimedStage:
        before, after = (
            torch.empty(size, *edge.shape, dtype=edge.dtype, device=self._mesh.device)
            for edge in self._edges[number : number + 2]
        )
        # Where a link is not said to carry gradients, none are sent, and its other end waits.
        before.requires_grad_(number > 0)
        after.requires_grad_(number < self._last)
        stage = _TimedStage(
            module,
            number,
            self._last + 1,
            self._mesh.device,
            input_args=(before,),
            output_args=(after,),
            group=self._mesh.pp_group,
        )
        stage.time_with(self._timer)
        return stage


class _TimedStage(PipelineStage):
    """A stage that times its own computation; what else a step takes is waiting for others."""

    def time_with(self, timer: StepTimer) -> None:
        self._timer = timer
        self._exposed = time_exposed_communication(self.submod, timer)

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._timer.part("compute"):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._timer.part("compute"), self._exposed():
            return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._timer.part("compute"):
            return super().backward_weight_one_chunk(*args, **kwargs)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Connect to neighbours on other ranks: gloo has no link to itself (torch 2.11)."""
        links = super()._get_init_p2p_neighbors_ops()  # type: ignore[misc]  # not in torch 2.15
        return [link for link in links if link.group_peer != self.group_rank]
