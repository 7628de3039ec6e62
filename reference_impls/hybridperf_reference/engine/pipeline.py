"""Pipeline parallelism with ``torch.distributed.pipelining``: stages, schedules and evaluation."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from hybridperf.plan import SCHEDULES
from hybridperf_reference.engine.data_parallel import unwrap
from hybridperf_reference.engine.executor import StagePredictor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.data_parallel import DataParallel
    from hybridperf_reference.engine.loss import BatchLoss
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.parallelize import RankStages
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["Pipeline"]


class Pipeline:
    """Run the stages of one rank under the plan's schedule.

    Shapes are given explicitly, not inferred: shape inference runs the stage on uninitialized
    memory, which corrupts BatchNorm's running statistics (torch 2.11 to 2.13).
    """

    def __init__(
        self,
        part: RankStages,
        loss: BatchLoss,
        plan: ParallelPlan,
        mesh: Mesh,
        replicas: DataParallel,
        timer: StepTimer,
        *,
        replica_batch: int,
    ) -> None:
        self._loss, self._mesh = loss, mesh
        self._edges = [*zip(part.edges, part.edge_ranks, strict=True)]
        self._replicas, self._timer = replicas, timer
        self._numbers = plan.stages_of(mesh.pp_rank)
        self._last = plan.pipeline_stages - 1
        self._predictor = StagePredictor(part, plan, mesh)
        self._idle = _IdleTimer(timer)
        size = replica_batch // plan.microbatches
        stages = [
            self._stage(module, number, size)
            for number, module in zip(self._numbers, part.modules, strict=True)
        ]
        one_each = plan.stages == 1
        schedule = getattr(pipelining, SCHEDULES[plan.schedule or ""].runtime)
        self._train = schedule(
            stages[0] if one_each else stages, plan.microbatches, loss_fn=loss, scale_grads=False
        )

    def compute_gradients(
        self, step: int, inputs: Tensor | None, targets: Tensor | None, scale: float
    ) -> None:
        """Compute the gradients of the mean loss over the micro-batches of a step.

        The first stage needs ``inputs`` and the last ``targets``, both [batch, ...].
        """
        arguments = (inputs,) if 0 in self._numbers else ()
        own = targets if self._last in self._numbers else None
        self._idle.begin(step)
        if own is not None:
            self._loss.begin_step(own, scale)
        self._train.step(*arguments, target=own, return_outputs=False)
        self._idle.end()

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs for ``inputs``, both [batch, ...], on the last stage's rank, else None."""
        return self._predictor.predict(inputs, samples)

    def _stage(self, module: nn.Module, number: int, size: int) -> _TimedStage:
        """Build stage ``number`` for micro-batches of ``size`` samples."""
        before, after = (
            torch.empty(size // ranks, *edge.shape, dtype=edge.dtype, device=self._mesh.device)
            for edge, ranks in self._edges[number : number + 2]
        )
        # The runtime sends gradients only for tensors that require them; else the receiver hangs.
        before.requires_grad_(number > 0)
        after.requires_grad_(number < self._last)
        unwrap(module).register_forward_hook(_carry_gradients)
        stage = _TimedStage(
            module,
            number,
            self._last + 1,
            self._mesh.device,
            input_args=(before,),
            output_args=(after,),
            group=self._mesh.pp_group,
        )
        stage.time_with(self._idle, self._replicas)
        return stage


def _carry_gradients(_: nn.Module, inputs: tuple[Tensor], outputs: Tensor) -> Tensor:
    """Make ``outputs`` require gradients, even if no earlier stage is trained.

    The pipeline runtime detaches outputs in place, which views do not allow, so views are cloned.
    So are inputs that are returned, also by the last stage, whose inputs torch 2.11 would detach.
    """
    if not torch.is_grad_enabled():
        return outputs
    if outputs is inputs[0] or outputs._is_view():  # noqa: SLF001 - the runtime's own check
        outputs = outputs.clone()
    return outputs if outputs.requires_grad else outputs.requires_grad_()


class _IdleTimer:
    """Time the passes of a step's stages, and the waiting between them.

    Between two passes, torch's runtime only waits for other stages.
    """

    def __init__(self, timer: StepTimer) -> None:
        self._timer, self._step = timer, 0
        self._since: Any = None

    def begin(self, step: int) -> None:
        """Start to wait for the first pass of ``step``."""
        self._step, self._since = step, self._timer.mark()

    @contextlib.contextmanager
    def one_pass(self, kind: str, microbatch: int, stage: int) -> Iterator[None]:
        """Time the body as a pass, and the time before it as waiting."""
        self.end()
        with self._timer.action(kind, self._step, microbatch, stage=stage):
            yield
        self._since = self._timer.mark()

    def end(self) -> None:
        """Stop waiting: a pass or the end of the step follows."""
        self._timer.add("waiting", self._since, self._timer.mark())


class _TimedStage(PipelineStage):
    """A pipeline stage whose passes are timed."""

    def time_with(self, idle: _IdleTimer, replicas: DataParallel) -> None:
        """Set the timer, and the strategy whose exposed communication is timed too."""
        self._idle = idle
        self._timed_backward = replicas.timed_backward(self.submod)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._idle.one_pass("forward", fwd_chunk_id, self.stage_index):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        kind = "backward" if kwargs.get("full_backward", True) else "backward of inputs"
        with self._idle.one_pass(kind, bwd_chunk_id, self.stage_index), self._timed_backward():
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        with self._idle.one_pass("backward of weights", bwd_chunk_id, self.stage_index):
            return super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Omit links from a rank to itself, which gloo does not support (torch 2.11)."""
        links = super()._get_init_p2p_neighbors_ops()  # type: ignore[misc]  # not in torch 2.15
        return [link for link in links if link.group_peer != self.group_rank]
