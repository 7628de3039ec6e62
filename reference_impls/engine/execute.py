"""Run the forward and backward passes of one step, with or without a pipeline."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from reference_impls.engine.timing import StepTimer

__all__ = ["Executor", "WholeModel", "time_exposed_communication"]


class Executor(Protocol):
    """What computes a replica's gradients."""

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Leave in the parameters the mean gradient of the replica's samples, over all replicas."""

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs for ``inputs`` where the last stage is, None elsewhere."""


class WholeModel:
    """No pipeline: one micro-batch after the other, gradients accumulated."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        microbatches: int,
        timer: StepTimer,
    ) -> None:
        self._module, self._loss, self._microbatches = module, loss, microbatches
        self._timer = timer
        self._exposed = time_exposed_communication(module, timer)

    def step(self, inputs: Tensor, labels: Tensor) -> None:
        """Compute the gradients of the mean loss."""
        pairs = zip(inputs.chunk(self._microbatches), labels.chunk(self._microbatches), strict=True)
        for number, (some_inputs, some_labels) in enumerate(pairs, start=1):
            with self._timer.part("compute"), self._synchronised(number == self._microbatches):
                loss = self._loss(self._module(some_inputs), some_labels) / self._microbatches
                with self._exposed():
                    loss.backward()

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the outputs."""
        inner = (
            self._module.module
            if isinstance(self._module, DistributedDataParallel)
            else self._module
        )
        outputs: Tensor = inner(inputs)
        return outputs

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager[None]:
        if last or not isinstance(self._module, DistributedDataParallel):
            return contextlib.nullcontext()
        return self._module.no_sync()


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
