"""What BatchNorm's statistics are taken over: a micro-batch, a step's, or all replicas'."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm  # what all of torch's have in common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reference_impls.engine.chain import Unit
    from reference_impls.engine.mesh import Mesh
    from suite.plan import ParallelPlan

__all__ = ["apply_batch_norm", "commit_statistics", "frozen_statistics"]


def apply_batch_norm(units: Sequence[Unit], *, plan: ParallelPlan, mesh: Mesh) -> tuple[Unit, ...]:
    """Return ``units`` whose BatchNorm layers take their statistics as ``plan.bn`` says."""
    if plan.bn == "micro":
        return tuple(units)

    def converted(module: nn.Module) -> nn.Module:
        if isinstance(module, _BatchNorm):
            if plan.bn == "deferred":
                return _DeferredBatchNorm(module)
            return _SharedBatchNorm(module, mesh)
        for name, child in module.named_children():
            module.add_module(name, converted(child))
        return module

    return tuple(dataclasses.replace(unit, module=converted(unit.module)) for unit in units)


def commit_statistics(module: nn.Module) -> None:
    """Let deferred layers update their running statistics; called once a step."""
    for layer in module.modules():
        if isinstance(layer, _DeferredBatchNorm):
            layer.commit()


@contextlib.contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Keep running statistics as they are, in a forward pass that repeats another."""
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked = layer.num_batches_tracked.clone()
    try:
        yield
    finally:
        for layer, (momentum, count) in zip(layers, before, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, count


class _LikeBatchNorm(_BatchNorm, abc.ABC):
    """A layer with the parameters, statistics and names of the one that it takes the place of."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, other: _BatchNorm) -> None:
        assert other.running_mean is not None
        assert other.momentum is not None, "a cumulative average is not known here"
        device = other.running_mean.device
        super().__init__(other.num_features, other.eps, other.momentum, device=device)
        for tensors in (other._parameters, other._buffers):  # noqa: SLF001 - to share, not to copy
            for name, tensor in tensors.items():
                setattr(self, name, tensor)
        self.train(other.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``inputs`` normalised: by running statistics, or by what training says."""
        if self.training:
            return self.normalise(inputs)
        outputs: Tensor = functional.batch_norm(
            inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )
        return outputs

    @abc.abstractmethod
    def normalise(self, inputs: Tensor) -> Tensor:
        """Return ``inputs`` normalised while training, and see to the running statistics."""

    def move(self, mean: Tensor, variance: Tensor) -> None:
        """Move running statistics towards ``mean`` and the unbiased ``variance``: [channel]."""
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance, self.momentum)


class _DeferredBatchNorm(_LikeBatchNorm):
    """Normalise each micro-batch by itself; update running statistics by all of a step's samples.

    The idea is that of DeferredBatchNorm in torchgpipe (Kim et al. 2020). Counts, means and sums
    of squares are put together by the formula of Chan, Golub and LeVeque 1979.
    """

    seen: Tensor
    seen_mean: Tensor
    seen_squares: Tensor

    def __init__(self, other: _BatchNorm) -> None:
        super().__init__(other)
        mean = torch.zeros_like(self.running_mean)
        self.register_buffer("seen", torch.zeros_like(mean[0]), persistent=False)
        self.register_buffer("seen_mean", mean, persistent=False)
        self.register_buffer("seen_squares", mean.clone(), persistent=False)

    def normalise(self, inputs: Tensor) -> Tensor:
        if self.momentum > 0:
            self._see(inputs.detach())
        outputs: Tensor = functional.batch_norm(
            inputs, None, None, self.weight, self.bias, training=True, eps=self.eps
        )
        return outputs

    def _see(self, inputs: Tensor) -> None:
        count = inputs.numel() // inputs.shape[1]
        variance, mean = _spread_and_mean(inputs)
        total = self.seen + count
        away = mean - self.seen_mean
        self.seen_squares.add_(variance * count + away.square() * (self.seen * count / total))
        self.seen_mean.add_(away * (count / total))
        self.seen.copy_(total)

    def commit(self) -> None:
        """Update running statistics by what was seen since the last call."""
        self.move(self.seen_mean, self.seen_squares / (self.seen - 1))
        for buffer in (self.seen, self.seen_mean, self.seen_squares):
            buffer.zero_()


class _SharedBatchNorm(_LikeBatchNorm):
    """Normalise by the statistics of a micro-batch on all replicas, which have as many samples."""

    def __init__(self, other: _BatchNorm, mesh: Mesh) -> None:
        super().__init__(other)
        self._mesh = mesh

    def normalise(self, inputs: Tensor) -> Tensor:
        variance, mean = _spread_and_mean(inputs)
        groups = self._mesh.replica_groups()
        replicas = 1
        shared = torch.stack([mean, mean.square(), variance])
        for group in groups:
            replicas *= dist.get_world_size(group)
            shared = _Sum.apply(shared, group)
        mean, squares, within = (shared / replicas).unbind()
        variance = within + (squares - mean.square()).clamp(min=0)
        if self.momentum > 0:
            count = replicas * inputs.numel() // inputs.shape[1]
            self.move(mean.detach(), variance.detach() * (count / (count - 1)))
        shape = [1, -1] + [1] * (inputs.dim() - 2)
        scale = self.weight * (variance + self.eps).rsqrt()
        centred = inputs - mean.view(shape)
        return (centred * scale.view(shape) + self.bias.view(shape)).to(inputs.dtype)


class _Sum(torch.autograd.Function):
    """The sum over a group's ranks; its gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone()
        dist.all_reduce(total, group=context.group)
        return total, None


def _spread_and_mean(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return variance, with nothing corrected, and mean, in fp32 at least: [channel]."""
    wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
    dims = [dim for dim in range(inputs.dim()) if dim != 1]
    variance, mean = torch.var_mean(wide, dims, correction=0)
    return variance, mean
