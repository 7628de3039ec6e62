"""Average the gradients of a step over the replicas of a stage while later passes compute."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from hybridperf_reference.engine.gradient_compression import GRADIENT_AVERAGES
from hybridperf_reference.engine.gradients import add_zero_gradients, unused_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.gradient_compression import Pending
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["GradientReducer"]

_BUCKET_BYTES: Final = 8 * 2**20  # gloo and NCCL reach their bandwidth with messages of this size


class GradientReducer:
    """Average gradients bucket by bucket, from the last backward pass of a step on.

    ``parameters`` are all trainable ones of the stage; the gradient of one that no pass of a step
    used is zero. Buckets are in the order in which gradients are computed, as in
    DistributedDataParallel (Li et al. 2020), and every replica starts them in that order. Several
    steps may be under way.
    """

    def __init__(
        self, parameters: Sequence[Tensor], plan: ParallelPlan, mesh: Mesh, seed: int
    ) -> None:
        self._parameters, group = parameters, mesh.group("replicate")
        # PowerSGD sends the factors of all matrices in one message.
        whole = plan.gradients == "powersgd"
        self._buckets = [[*range(len(parameters))]] if whole else _buckets(parameters)
        self._bucket_of = {n: index for index, bucket in enumerate(self._buckets) for n in bucket}
        build = GRADIENT_AVERAGES[plan.gradients]
        self._averages = [
            build([parameters[n] for n in bucket], group, seed, plan.staleness)
            for bucket in (self._buckets if group is not None else ())
            if group is not None
        ]
        self._own: dict[int, list[Tensor]] = {}  # by step, of the only replica
        self._pending: dict[int, list[Pending]] = {}  # by step, one for each bucket started
        self._taken: list[Pending] = []
        self._step: int | None = None  # whose last backward pass is under way
        self._weights: Sequence[Tensor] = ()
        self._missing: list[int] = []

    @property
    def sent_bytes(self) -> int:
        """Return the bytes handed to all-reduces so far."""
        return sum(average.sent_bytes for average in self._averages)

    @property
    def uncompressed_bytes(self) -> int:
        """Return the bytes of the gradients averaged so far."""
        return sum(average.uncompressed_bytes for average in self._averages)

    def begin(self, step: int, weights: Sequence[Tensor], outputs: Tensor) -> None:
        """Prepare for the last backward pass of ``step``, from ``outputs`` [...] to ``weights``."""
        self._step, self._weights = step, weights
        self._pending[step] = []
        self._missing = [len(bucket) for bucket in self._buckets]
        for number in unused_tensors(outputs, weights) if self._averages else ():
            self.ready(number)

    def ready(self, number: int) -> None:
        """Start the buckets that are complete now that the gradient of parameter ``number`` is."""
        if self._step is None or not self._averages:
            return
        index = self._bucket_of[number]
        self._missing[index] -= 1
        if not self._missing[index]:
            self._start(only_complete=True)

    def end(self, step: int) -> None:
        """Start the rest of the buckets of ``step``, whose last backward pass is over."""
        if self._averages:
            self._start(only_complete=False)
        else:
            self._own[step] = self._collected(range(len(self._parameters)))
        self._step = None

    def take(self, step: int) -> list[Tensor]:
        """Wait for the averages [...] of ``step`` and return them by parameter."""
        self._taken = self._pending.pop(step)
        if not self._averages:
            return self._own.pop(step)
        averages = [*self._parameters]
        for bucket, average, each in zip(self._buckets, self._averages, self._taken, strict=True):
            for number, gradient in zip(bucket, average.finish(each), strict=True):
                averages[number] = _in_layout(gradient, self._parameters[number])
        return averages

    def discard(self) -> None:
        """Undo what the step last taken left for later ones, because the weights skip it."""
        for average, pending in zip(self._averages, self._taken, strict=False):
            average.discard(pending)

    def state(self) -> dict[str, Tensor]:
        """Return what this replica keeps for later steps, by bucket; no step may be pending."""
        return {
            f"{number}.{name}": value
            for number, average in enumerate(self._averages)
            for name, value in average.state().items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for number, average in enumerate(self._averages):
            start = f"{number}."
            average.load_state(
                {n.removeprefix(start): v for n, v in state.items() if n.startswith(start)}
            )

    def _start(self, *, only_complete: bool) -> None:
        assert self._step is not None
        started = self._pending[self._step]
        while len(started) < len(self._buckets):
            index = len(started)
            if only_complete and self._missing[index]:
                return
            started.append(self._averages[index].start(self._collected(self._buckets[index])))

    def _collected(self, numbers: Sequence[int]) -> list[Tensor]:
        """Return the accumulated gradients of some parameters, and clear them."""
        weights = [self._weights[number] for number in numbers]
        add_zero_gradients(weights)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            weight.grad = None
        return gradients


def _in_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return ``gradient`` in the memory layout of its parameter, which fused optimizers assume."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _buckets(parameters: Sequence[Tensor]) -> list[list[int]]:
    """Return indices of parameters in buckets, those computed last in the forward pass first."""
    buckets: list[list[int]] = []
    size_bytes = _BUCKET_BYTES
    for number, parameter in reversed([*enumerate(parameters)]):
        own_bytes = parameter.nbytes
        if size_bytes + own_bytes > _BUCKET_BYTES:
            buckets.append([])
            size_bytes = 0
        buckets[-1].append(number)
        size_bytes += own_bytes
    return buckets
