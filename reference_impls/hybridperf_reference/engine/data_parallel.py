"""Data parallelism: strategies that average gradients over the replicas of a stage."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hybridperf_reference.engine.compilation import without_compiler
from hybridperf_reference.engine.gradients import (
    flatten,
    local_gradients,
    reach_all_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Stage, Unit
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["Blocking", "DataParallel", "Overlapped", "unwrap"]

Context = contextlib.AbstractContextManager[None]


class DataParallel:
    """The interface of all strategies, and the strategy of a single replica.

    ``wrap`` is called once for each stage of the rank. In a step, ``micro_batch`` surrounds each
    forward and backward pass outside of a pipeline, ``after_backward`` follows the last of them,
    and ``before_step`` precedes the optimizer: a strategy may communicate between the two.
    ``averaged_statistics`` surrounds code that needs identical replicas, such as an evaluation.
    """

    reduces_in_backward = False  #: whether every backward pass must compute all gradients

    def __init__(self, plan: ParallelPlan, mesh: Mesh, timer: StepTimer) -> None:
        self._plan, self._mesh, self._timer = plan, mesh, timer
        self._stages: list[nn.Module] = []

    def wrap(self, stage: Stage, units: Sequence[Unit]) -> nn.Module:  # noqa: ARG002 - subclasses'
        """Return the module to call in place of ``stage``, which consists of ``units``."""
        self._stages.append(stage)
        # torch's pipelines send gradients of inputs, and with zbv lose gradients of parameters
        # without a path to the inputs.
        if self.reduces_in_backward or self._plan.pp > 1:
            reach_all_parameters(stage)
        return stage

    def micro_batch(self, *, last: bool) -> Context:  # noqa: ARG002 - subclasses'
        """Return a context for the passes of a micro-batch; ``last`` marks the last of a step."""
        return contextlib.nullcontext()

    def timed_backward(self, module: nn.Module) -> Callable[[], Context]:  # noqa: ARG002 - as above
        """Return a factory of contexts that time exposed communication in ``module``'s backward."""
        return contextlib.nullcontext

    def after_backward(self) -> None:
        """Start, or complete, the gradient communication that follows the last backward pass."""

    def before_step(self) -> None:
        """Ensure that each parameter's gradient is the mean over all replicas."""

    def after_change(self) -> None:
        """Discard copies of weights after a change by anything but the optimizer."""

    @contextlib.contextmanager
    def averaged_statistics(self) -> Iterator[None]:
        """Let running statistics be their mean over replicas while the body runs.

        Afterwards each replica has its own again, so evaluation changes no bit of training.
        """
        buffers = [buffer for stage in self._stages for buffer in stage.buffers()]
        buffers = [buffer for buffer in buffers if buffer.is_floating_point()]
        own = [buffer.clone() for buffer in buffers] if self._mesh.replica_groups() else []
        self._average(buffers)
        yield
        for buffer, value in zip(buffers, own, strict=False):
            buffer.copy_(value)

    def _average(self, tensors: Iterable[Tensor], dtype: torch.dtype | None = None) -> None:
        """Average ``tensors`` over replicas in place, flatten into one all-reduce per group.

        The reduction is in ``dtype`` if given.
        """
        tensors, groups = list(tensors), self._mesh.replica_groups()
        if not groups or not tensors:
            return
        with flatten(tensors, dtype=dtype) as flat:
            for group in groups:
                dist.all_reduce(flat, group=group)
                flat /= dist.get_world_size(group)


class Overlapped(DataParallel):
    """All-reduce gradient buckets during the last backward pass of a step (Li et al. 2020)."""

    reduces_in_backward = True

    def __init__(self, plan: ParallelPlan, mesh: Mesh, timer: StepTimer) -> None:
        super().__init__(plan, mesh, timer)
        self._first: dict[
            nn.Module, list[nn.Parameter]
        ] = {}  # parameters of the first trained unit, by stage

    def wrap(self, stage: Stage, units: Sequence[Unit]) -> nn.Module:
        """Return ``stage`` in DistributedDataParallel, or itself if nothing in it is trainable."""
        super().wrap(stage, units)
        by_unit = ([p for p in u.module.parameters() if p.requires_grad] for u in units)
        first = next(filter(None, by_unit), None)
        if first is None:
            return stage
        with without_compiler():
            self._wrapped = DistributedDataParallel(
                stage,
                process_group=self._mesh.group("replicate"),
                gradient_as_bucket_view=True,
                **_NO_BUFFER_BROADCAST,
            )
        if self._plan.gradients == "bf16":
            self._wrapped.register_comm_hook(
                self._mesh.group("replicate"),
                lambda group, bucket: _average_in_bf16(group, bucket),  # torch reads annotations
            )
        self._first[self._wrapped] = first
        return self._wrapped

    def micro_batch(self, *, last: bool) -> Context:
        """Return a context that skips the all-reduce unless the micro-batch is the ``last``."""
        return contextlib.nullcontext() if last else self._wrapped.no_sync()

    def timed_backward(self, module: nn.Module) -> Callable[[], Context]:
        """Return a factory of contexts that time a backward pass after its last gradient.

        The gradients of the first unit are computed last, except zeros for unused parameters; from
        then on the backward pass only waits for all-reduces.
        """
        if module not in self._first:
            return contextlib.nullcontext
        marks: list[object] = []
        for parameter in self._first[module]:
            parameter.register_post_accumulate_grad_hook(lambda _: marks.append(self._timer.mark()))

        @contextlib.contextmanager
        def backward() -> Iterator[None]:
            marks.clear()
            yield
            if marks:
                self._timer.add("exposed_communication", marks[-1], self._timer.mark())

        return backward


def _average_in_bf16(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[Tensor]:
    """Average a bucket of gradients in bf16, as a DDP communication hook.

    torch's own ``bf16_compress_hook`` refuses builds without NCCL.
    """
    whole: Tensor = bucket.buffer()
    narrow = whole.to(torch.bfloat16).div_(group.size())
    work = dist.all_reduce(narrow, group=group, async_op=True)
    assert work is not None

    def widen(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        mean: Tensor = done.value()[0]
        return whole.copy_(mean)

    averaged: torch.futures.Future[Tensor] = work.get_future().then(widen)
    return averaged


class Blocking(DataParallel):
    """All-reduce all gradients in one call after the last backward pass of a step."""

    def after_backward(self) -> None:
        """Average the gradients of all stages of this rank over the replicas."""
        own = [p for stage in self._stages for p in stage.parameters() if p.requires_grad]
        with self._timer.part("compute"), self._timer.part("exposed_communication"):
            narrow = torch.bfloat16 if self._plan.gradients == "bf16" else None
            self._average(local_gradients(own), narrow)


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel, or ``module`` itself, for evaluation."""
    return module.module if isinstance(module, DistributedDataParallel) else module


_OPTIONS = inspect.signature(DistributedDataParallel).parameters
# Running statistics are averaged where they are used, not broadcast in every forward pass. torch
# 2.15 renamed the option and warns about the old name.
_NAME = "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"
_NO_BUFFER_BROADCAST: dict[str, Any] = {_NAME: False}
