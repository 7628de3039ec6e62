"""BatchNorm statistics: per micro-batch, deferred to the end of a step, or over all replicas."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm  # the base class of torch's BatchNorm layers
from torch.overrides import TorchFunctionMode

from hybridperf.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Unit
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["apply_batch_norm", "commit_statistics", "is_batch_norm"]


def is_batch_norm(module: nn.Module) -> TypeGuard[_BatchNorm]:
    """Return whether ``module`` is a torch BatchNorm layer, or a subclass of one."""
    return isinstance(module, _BatchNorm)


def apply_batch_norm(units: Iterable[Unit], *, plan: ParallelPlan, mesh: Mesh) -> None:
    """Set the scope of BatchNorm statistics in ``units`` to ``plan.bn``.

    ``micro`` keeps torch's behavior. ``deferred`` normalizes each micro-batch by its own statistics
    and updates running statistics once per step. ``sync`` normalizes by statistics over all
    replicas. Only the call of ``functional.batch_norm`` is replaced, so a subclass keeps the rest
    of its ``forward``. Layers are changed in place.
    """
    if plan.bn == "micro":
        return
    for unit in units:
        for module in unit.module.modules():
            if isinstance(module, _BatchNorm):
                _replace(module, plan=plan, mesh=mesh)


_DEFERRED = "deferred_statistics"


def _replace(layer: _BatchNorm, *, plan: ParallelPlan, mesh: Mesh) -> None:
    module: nn.Module = layer  # as nn.Module, `forward` may be assigned
    if plan.bn == "sync":
        module.forward = _Synchronized(layer, mesh.replica_groups())
    elif layer.running_mean is not None:
        statistics = _Deferred(layer, torch.zeros_like(layer.running_mean))
        module.forward = statistics
        module.__dict__[_DEFERRED] = statistics  # survives later wrapping of `forward`


def commit_statistics(module: nn.Module) -> None:
    """Update the running statistics of the deferred layers in ``module``; call once per step."""
    for layer in module.modules():
        if isinstance(statistics := layer.__dict__.get(_DEFERRED), _Deferred):
            statistics.commit()


class _BatchNormForward(abc.ABC):
    """Replace a layer's ``forward``; in training, call ``normalize`` for torch's batch_norm."""

    def __init__(self, layer: _BatchNorm) -> None:
        self._layer, self._forward = layer, layer.forward
        self._is_plain = type(layer).forward is _BatchNorm.forward
        # Stops torch from updating running statistics in training; evaluation still uses them.
        layer.track_running_stats = False

    def __call__(self, inputs: Tensor) -> Tensor:
        layer = self._layer
        if not layer.training:
            return self._forward(inputs)
        if self._is_plain:
            return self.normalize(inputs, layer.weight, layer.bias, layer.eps)
        with _BatchNormInterceptor(self.normalize) as replaced:
            outputs: Tensor = self._forward(inputs)
        if not replaced.calls:
            raise UserError(
                f"{type(layer).__name__} does not call torch.nn.functional.batch_norm, so its "
                "statistics cannot be replaced; use bn=micro",
                ExitCode.USAGE,
            )
        return outputs

    @abc.abstractmethod
    def normalize(
        self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        """Return ``inputs`` [batch, channel, ...] normalized, and record or update statistics.

        ``weight`` and ``bias`` are [channel], or None for a layer without affine parameters.
        """

    def update_running(
        self, mean: Tensor, variance: Tensor, any_seen: Tensor | None = None
    ) -> None:
        """Update running statistics with ``mean`` and the unbiased ``variance``, both [channel].

        Without effect if ``any_seen`` [] is false, which only the device knows.
        """
        layer = self._layer
        if layer.running_mean is None or layer.running_var is None:
            return
        assert layer.num_batches_tracked is not None
        layer.num_batches_tracked.add_(1 if any_seen is None else any_seen)
        # With momentum=None, running statistics are the cumulative average of all updates.
        average = layer.num_batches_tracked.to(mean.dtype).reciprocal()
        weight = average if layer.momentum is None else layer.momentum
        for running, value in ((layer.running_mean, mean), (layer.running_var, variance)):
            updated = running.lerp(value, weight)
            running.copy_(updated if any_seen is None else torch.where(any_seen, updated, running))


class _BatchNormInterceptor(TorchFunctionMode):
    """Intercept ``functional.batch_norm`` and call ``normalize`` instead, counting the calls."""

    def __init__(self, normalize: Callable[..., Tensor]) -> None:
        super().__init__()
        self._normalize, self.calls = normalize, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is not functional.batch_norm:
            return func(*args, **(kwargs or {}))
        given = dict(zip(_ARGUMENTS, args, strict=False)) | (kwargs or {})
        self.calls += 1
        return self._normalize(
            given["input"], given.get("weight"), given.get("bias"), given.get("eps", 1e-5)
        )


_ARGUMENTS = "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"


class _Deferred(_BatchNormForward):
    """Normalize by micro-batch statistics; update running statistics from all samples of a step.

    As DeferredBatchNorm in torchgpipe (Kim et al. 2020). Counts, means and sums
    of squared deviations of micro-batches are merged by the formula of Chan, Golub and LeVeque
    (1979).
    """

    def __init__(self, layer: _BatchNorm, mean: Tensor) -> None:
        super().__init__(layer)
        # Buffers, so that recomputation restores them and counts no micro-batch twice.
        layer.register_buffer("seen", torch.zeros_like(mean[0]), persistent=False)
        layer.register_buffer("seen_mean", mean, persistent=False)
        layer.register_buffer("seen_squares", mean.clone(), persistent=False)

    def normalize(
        self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        self._accumulate(inputs.detach())
        outputs: Tensor = functional.batch_norm(
            inputs, None, None, weight, bias, training=True, eps=eps
        )
        return outputs

    def _accumulate(self, inputs: Tensor) -> None:
        """Merge the statistics of ``inputs`` [batch, channel, ...] into the step's statistics."""
        seen, seen_mean, seen_squares = self._statistics()
        wide = inputs.to(seen_mean.dtype)
        variance, mean = torch.var_mean(wide, _reduced_dims(inputs), correction=0)
        count = inputs.numel() // inputs.shape[1]
        distance, total = mean - seen_mean, seen + count
        seen_squares.add_(variance * count + distance.square() * (seen * count / total))
        seen_mean.add_(distance * (count / total))
        seen.copy_(total)

    def commit(self) -> None:
        """Update running statistics from the step's statistics, and reset the latter to zero.

        A layer that no micro-batch ran, or that stays in evaluation mode, has no statistics.
        """
        seen, mean, squares = self._statistics()
        self.update_running(mean, squares / (seen - 1), seen > 0)
        for buffer in (seen, mean, squares):
            buffer.zero_()

    def _statistics(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the step's element count per channel, mean [channel], sum of squares [channel]."""
        buffers = self._layer._buffers  # noqa: SLF001 - a Module's attributes have no types
        return buffers["seen"], buffers["seen_mean"], buffers["seen_squares"]  # type: ignore[return-value]  # never None


class _Synchronized(_BatchNormForward):
    """Normalize by the statistics of a micro-batch over all replicas, all of one size."""

    def __init__(self, layer: _BatchNorm, groups: Sequence[dist.ProcessGroup]) -> None:
        super().__init__(layer)
        self._groups = groups

    def normalize(
        self, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        outputs, mean, variance = _SyncNormalize.apply(inputs, weight, bias, eps, self._groups)
        count = inputs.numel() // inputs.shape[1] * _replicas(self._groups)
        self.update_running(mean, variance * (count / max(1, count - 1)))
        return outputs  # type: ignore[no-any-return]  # torch leaves apply() untyped


class _SyncNormalize(torch.autograd.Function):
    """Normalize by the mean and variance over all replicas, with one collective per pass and group.

    Each replica subtracts its own mean before the variance is computed, and the replicas'
    statistics are merged by the formula of Chan, Golub and LeVeque (1979), so nothing cancels where
    means are large. The loss that gradients belong to is the sum over replicas (Ioffe and Szegedy
    2015).
    """

    @staticmethod
    def forward(
        context: Any,
        inputs: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        groups: Sequence[dist.ProcessGroup],
    ) -> tuple[Tensor, Tensor, Tensor]:
        dims = _reduced_dims(inputs)
        wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        own = wide.mean(dims)
        centred = wide - _by_channel(own, inputs)
        within, rest = torch.var_mean(centred, dims, correction=0)
        owns, rests, withins = _all_gather(torch.stack([own, rest, within]), groups).unbind(dim=1)
        distances = owns - own + rests  # of the replicas' means from this replica's mean
        offset = distances.mean(dim=0)
        variance = (withins + (distances - offset).square()).mean(dim=0)
        deviation = (variance + eps).rsqrt()
        outputs = (centred - _by_channel(offset, inputs)) * _by_channel(
            deviation if weight is None else deviation * weight, inputs
        )
        if bias is not None:
            outputs = outputs + _by_channel(bias, inputs)
        context.save_for_backward(inputs, weight, own, offset, deviation)
        context.groups, context.has_bias = groups, bias is not None
        mean = (owns + rests).mean(dim=0)
        context.mark_non_differentiable(mean, variance)
        return outputs.to(inputs.dtype), mean, variance

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight, own, offset, deviation = context.saved_tensors
        dims, wide = _reduced_dims(inputs), own.dtype
        gradient = gradients[0].to(wide)
        normal = inputs.to(wide) - _by_channel(own, inputs)
        normal = (normal - _by_channel(offset, inputs)) * _by_channel(deviation, inputs)
        sums = torch.stack([gradient.sum(dims), (gradient * normal).sum(dims)])
        totals = sums.clone()
        for group in context.groups:
            dist.all_reduce(totals, group=group)
        count = inputs.numel() // inputs.shape[1] * _replicas(context.groups)
        mean, slope = (_by_channel(total / count, inputs) for total in totals)
        scale = deviation if weight is None else deviation * weight
        moved = (gradient - mean - normal * slope) * _by_channel(scale, inputs)
        return (
            moved.to(inputs.dtype),
            None if weight is None else sums[1].to(weight.dtype),
            sums[0] if context.has_bias else None,
            None,
            None,
        )


def _all_gather(values: Tensor, groups: Sequence[dist.ProcessGroup]) -> Tensor:
    """Return the ``values`` [...] of all replicas: [replica, ...]."""
    gathered = values.unsqueeze(0)
    for group in groups:
        parts = [torch.empty_like(gathered) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, gathered, group=group)
        gathered = torch.cat(parts)
    return gathered


def _replicas(groups: Sequence[dist.ProcessGroup]) -> int:
    """Return the number of replicas that ``groups`` span together."""
    replicas = 1
    for group in groups:
        replicas *= dist.get_world_size(group)
    return replicas


def _reduced_dims(inputs: Tensor) -> list[int]:
    """Return the dimensions of ``inputs`` [batch, channel, ...] except the channel."""
    return [dim for dim in range(inputs.dim()) if dim != 1]


def _by_channel(values: Tensor, inputs: Tensor) -> Tensor:
    """Return ``values`` [channel] viewed to broadcast over ``inputs`` [batch, channel, ...]."""
    return values.view(1, -1, *[1] * (inputs.dim() - 2))
