"""Pipeline parallelism by ``torch.distributed.pipelining``: stages, schedules, evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from reference_impls.engine.execute import time_exposed_communication

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed.pipelining.schedules import PipelineScheduleSingle

    from reference_impls.engine.mesh import Mesh
    from reference_impls.engine.timing import StepTimer
    from suite.plan import ParallelPlan

__all__ = ["Boundary", "Pipeline"]

_SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}

Boundary = tuple[int, ...]  #: shape of one sample between two units


class Pipeline:
    """Run one rank's stage of a pipeline.

    Shapes are stated, not inferred: inference would run the stage on uninitialised memory and
    leave that in BatchNorm's statistics (torch 2.11 to 2.13).
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        plan: ParallelPlan,
        mesh: Mesh,
        timer: StepTimer,
        *,
        boundaries: tuple[Boundary, Boundary],
        replica_batch: int,
        evaluation_chunk: int,
    ) -> None:
        self._mesh, self._chunk = mesh, evaluation_chunk
        self._first, self._last = mesh.stage == 0, mesh.stage == plan.pp - 1
        self._boundaries, self._stages = boundaries, plan.pp
        assert plan.schedule is not None
        size = replica_batch // plan.microbatches
        self._train = _SCHEDULES[plan.schedule](
            self._stage(module, size, timer), plan.microbatches, loss_fn=loss
        )
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        self._predict = ScheduleGPipe(self._stage(inner, evaluation_chunk, None), 1)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Compute the gradients of the mean loss: first stage reads inputs, last stage labels."""
        arguments = (inputs,) if self._first else ()
        self._train.step(*arguments, target=labels if self._last else None, return_outputs=False)

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs on the last stage; short chunks are padded and cut again."""
        padding = inputs.new_zeros(self._chunk - len(inputs), *inputs.shape[1:])
        arguments = (torch.cat([inputs, padding]),) if self._first else ()
        outputs = self._predict.step(*arguments)
        return outputs[: len(inputs)] if self._last else None

    def _stage(self, module: nn.Module, size: int, timer: StepTimer | None) -> PipelineStage:
        before, after = (
            torch.empty(size, *shape, device=self._mesh.device) for shape in self._boundaries
        )
        # Where a link is not said to carry gradients, none are sent, and its other end waits.
        before.requires_grad_(not self._first and timer is not None)
        after.requires_grad_(not self._last and timer is not None)
        kind = PipelineStage if timer is None else _TimedStage
        stage = kind(
            module,
            self._mesh.stage,
            self._stages,
            self._mesh.device,
            input_args=(before,),
            output_args=(after,),
            group=self._mesh.pp_group,
        )
        if isinstance(stage, _TimedStage) and timer is not None:
            stage.time_with(timer)
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
