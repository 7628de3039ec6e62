"""Run the forward and backward passes of one step, with or without a pipeline."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import torch
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from reference_impls.engine.timing import StepTimer
    from suite.plan import ParallelPlan

__all__ = ["Executor", "WholeModel", "bare", "time_exposed_communication"]


class Executor(Protocol):
    """What computes a replica's gradients."""

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Leave in the parameters the mean gradient of the replica's samples.

        Over all replicas, except where the plan averages after the backward pass.
        """

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs for ``inputs`` where the last stage is, None elsewhere."""


class WholeModel:
    """No pipeline: one micro-batch after the other, gradients accumulated."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        plan: ParallelPlan,
        timer: StepTimer,
    ) -> None:
        self._module, self._loss, self._plan = module, loss, plan
        self._timer = timer
        self._exposed = time_exposed_communication(module, timer)

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        """Compute the gradients of the mean loss."""
        count = self._plan.microbatches
        pairs = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        for number, (some_inputs, some_targets) in enumerate(pairs, start=1):
            with self._timer.part("compute"), self._synchronised(last=number == count):
                loss = self._loss(self._module(some_inputs), some_targets)
                with self._exposed():
                    loss.backward(torch.full_like(loss, 1 / count))

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs."""
        outputs: Tensor = bare(self._module)(inputs)
        return outputs

    def _synchronised(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        if isinstance(self._module, DistributedDataParallel):
            return contextlib.nullcontext() if last else self._module.no_sync()
        if self._plan.dp > 1 and self._plan.microbatches > 1:  # else FSDP2 does so unasked
            from reference_impls.engine.sharding import synchronise

            synchronise(self._module, zero=self._plan.zero, last=last)
        return contextlib.nullcontext()


def bare(module: nn.Module) -> nn.Module:
    """Return what is called in evaluation, when no gradients are to be averaged."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def time_exposed_communication(
    module: nn.Module, timer: StepTimer
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context for a backward pass that times what follows its last gradient.

    The first parameter's gradient is the last to be computed; from there to the end of the pass
    a replica only waits for the all-reduce.
    """
    if not isinstance(module, DistributedDataParallel):
        return contextlib.nullcontext
    last_gradient: list[object] = []
    first_parameter = next(module.parameters())
    first_parameter.register_post_accumulate_grad_hook(lambda _: last_gradient.append(timer.mark()))

    @contextlib.contextmanager
    def backward() -> Iterator[None]:
        last_gradient.clear()
        yield
        if last_gradient:
            timer.add("exposed_communication", last_gradient[-1], timer.mark())

    return backward
