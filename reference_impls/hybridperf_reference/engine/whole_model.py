"""The passes of a step without a pipeline, accumulating gradients over micro-batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridperf_reference.engine.data_parallel import unwrapped

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.data_parallel import DataParallel
    from hybridperf_reference.engine.loss import BatchLoss
    from hybridperf_reference.engine.timing import StepTimer

__all__ = ["WholeModel"]


class WholeModel:
    """Run the whole model on this rank."""

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

    def compute_gradients(
        self, step: int, inputs: Tensor | None, targets: Tensor | None, scale: float
    ) -> None:
        """Accumulate gradients over micro-batches of ``inputs`` and ``targets`` [batch, ...]."""
        assert inputs is not None, "this rank holds the first stage"
        assert targets is not None, "this rank holds the last stage"
        with self._timer.part("waiting"):  # replicas may sum the numbers of their targets
            self._loss.begin_step(targets, scale)
        count = self._plan.microbatches
        pairs = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        for number, (some_inputs, some_targets) in enumerate(pairs):
            with self._replicas.micro_batch(last=number == count - 1):
                with self._timer.action("forward", step, number):
                    loss = self._loss(self._module(some_inputs), some_targets)
                with self._timer.action("backward", step, number), self._timed_backward():
                    loss.backward()

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return the outputs [batch, ...] for ``inputs`` [batch, ...]."""
        del samples  # as many as inputs
        assert inputs is not None, "this rank holds the first stage"
        outputs: Tensor = unwrapped(self._module)(inputs)
        return outputs
