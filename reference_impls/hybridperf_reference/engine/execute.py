"""Forward and backward passes of one step, with or without a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hybridperf_reference.engine.data_parallel import unwrapped

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.data_parallel import DataParallel
    from hybridperf_reference.engine.loss import BatchLoss
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["Executor", "WholeModel"]


class Executor(Protocol):
    """Computes the gradients of one replica, step by step, and its predictions."""

    def step(self, inputs: Tensor | None, targets: Tensor | None, scale: float) -> None:
        """Compute gradients for this replica's ``inputs`` and ``targets``, both [batch, ...].

        Ranks without the first or the last stage may have None. ``scale`` multiplies the loss.

        Afterwards ``grad`` holds the gradient of the mean loss over the global batch, averaged over
        replicas, unless the strategy averages it after the backward pass.
        """

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs [batch, ...] on the rank of the last stage, and None on others.

        ``inputs`` [batch, ...] are those of ``samples`` samples; ranks without the first stage may
        have None.
        """


class WholeModel:
    """Run the whole model without a pipeline, accumulating gradients over micro-batches."""

    def __init__(
        self,
        module: nn.Module,
        loss: BatchLoss,
        plan: ParallelPlan,
        replicas: DataParallel,
        timer: StepTimer,
    ) -> None:
        self._module, self._loss, self._plan = module, loss, plan
        self._replicas, self._timer = replicas, timer
        self._timed_backward = replicas.timed_backward(module)

    def step(self, inputs: Tensor | None, targets: Tensor | None, scale: float) -> None:
        """Accumulate gradients over micro-batches of ``inputs`` and ``targets`` [batch, ...]."""
        assert inputs is not None, "this rank holds the first stage"
        assert targets is not None, "this rank holds the last stage"
        self._loss.begin_step(targets, scale)
        count = self._plan.microbatches
        pairs = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        for number, (some_inputs, some_targets) in enumerate(pairs, start=1):
            with self._timer.part("compute"), self._replicas.micro_batch(last=number == count):
                loss = self._loss(self._module(some_inputs), some_targets)
                with self._timed_backward():
                    loss.backward()

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return the outputs [batch, ...] for ``inputs`` [batch, ...]."""
        del samples  # as many as inputs
        assert inputs is not None, "this rank holds the first stage"
        outputs: Tensor = unwrapped(self._module)(inputs)
        return outputs
