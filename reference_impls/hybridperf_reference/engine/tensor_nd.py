"""Tensor parallelism over a square, a square times a depth, or a cube of ranks.

Weights and activations are split, over two or three axes of ranks: 2D (Xu et al. 2021), 2.5D (Wang
et al. 2022) and 3D (Bian et al. 2021), as in Colossal-AI. A linear layer gathers parts of its
inputs and weights, multiplies them, and in 3D reduces and scatters its outputs. Products are of
plain tensors: parameters are DTensors only for optimizers, norms and checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional

from hybridperf_reference.engine.tokens import enter_at, leave_at, within_regions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Split, Unit
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["apply_arranged_parallelism", "arranged_parts"]


class _Layout(NamedTuple):
    """How the axes of an arrangement split a linear layer of weights [output, input]."""

    weights: Mapping[str, int]  #: dimension of the weights that each axis splits
    gathered_dim: int  #: dimension along which weights are gathered over the axis i
    outputs: str  #: axis that splits the features of outputs, and biases
    inputs: str  #: axis over which inputs [batch, ..., feature] are gathered
    inputs_dim: int  #: dimension along which they are
    summed: str | None = None  #: axis over which outputs are summed, and scattered by samples


_FLAT: Final = _Layout({"i": 1, "j": 0}, 1, outputs="j", inputs="j", inputs_dim=-1)
_FLAT_LAYERS: Final[Mapping[Split, _Layout]] = {"column": _FLAT, "row": _FLAT}
#: by the plan's ``tensor``. A dimension that several axes split is split by the first one first
_LAYOUTS: Final[Mapping[str, Mapping[Split, _Layout]]] = {
    "2d": _FLAT_LAYERS,
    "2.5d": _FLAT_LAYERS,
    "3d": {
        "column": _Layout({"j": 0, "k": 1, "i": 0}, 0, "j", inputs="j", inputs_dim=0, summed="k"),
        "row": _Layout({"j": 1, "k": 0, "i": 0}, 0, "k", inputs="k", inputs_dim=0, summed="j"),
    },
}


def apply_arranged_parallelism(
    units: Sequence[Unit], numbers: Iterable[int], *, plan: ParallelPlan, mesh: Mesh
) -> None:
    """Split the units in ``numbers`` over the arrangement of the plan's ``tensor``, in place.

    Adjacent units with column- and row-parallel layers form a region, in which each rank has a part
    of the samples and of the features. Other units compute the same on all ranks of a tp group.
    """
    edge, layouts = _Edge(plan, mesh), _LAYOUTS[plan.tensor]
    gather = _GatherInputs(_group(mesh, layouts["column"].inputs), layouts["column"].inputs_dim)
    within = within_regions(units)
    for number in numbers:
        unit = units[number]
        if not unit.shares_tokens:
            continue
        for name, module in [*unit.module.named_modules()]:
            if isinstance(module, nn.LayerNorm):
                norm = _LayerNorm(module, plan.tensor_hidden_axis, mesh)
                unit.module.set_submodule(name, norm)
        for name, split in unit.split.items():
            linear = unit.module.get_submodule(name)
            assert isinstance(linear, nn.Linear)
            unit.module.set_submodule(name, _Linear(linear, split, layouts[split], mesh))
        for place in unit.gather_points:
            unit.module.get_submodule(place).register_forward_pre_hook(gather)
        if not within[number]:
            enter_at(unit.module, edge)
        if not within[number + 1]:
            leave_at(unit.module, edge)


def arranged_parts(
    units: Sequence[Unit], boundaries: Sequence[Tensor], *, plan: ParallelPlan
) -> tuple[list[Tensor], list[int]]:
    """Return a rank's part of a sample before each unit and after the last, and who shares batches.

    The part is [token, feature] of a sample of ``boundaries`` [...]. The second list is the number
    of ranks over which a micro-batch is split: 1 outside of regions, where samples are whole.
    """
    features = plan.tensor_axes[plan.tensor_hidden_axis]
    within = within_regions(units)
    samples = [
        sample.chunk(features, -1)[0] if inside else sample
        for sample, inside in zip(boundaries, within, strict=True)
    ]
    return samples, [plan.batch_parts if inside else 1 for inside in within]


def _group(mesh: Mesh, axis: str) -> dist.ProcessGroup:
    """Return the ranks along ``axis`` of the arrangement, or all of them for the axis tp."""
    group = mesh.group(axis)
    assert group is not None, "an arrangement has no axis of one rank"
    return group


def _gather(part: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return the parts [...] of all ranks of ``group``, concatenated along ``dim``."""
    stacked = part.new_empty(group.size(), *part.shape)
    # Flat: gloo concatenates what NCCL would stack.
    dist.all_gather_into_tensor(stacked.flatten(0, 1), part.contiguous(), group=group)
    dim %= part.dim()
    return stacked.movedim(0, dim).flatten(dim, dim + 1)


def _scatter(values: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return this rank's part, along ``dim``, of the sum of ``values`` [...] over ``group``."""
    dim %= values.dim()
    parts = values.unflatten(dim, (group.size(), -1)).movedim(dim, 0).contiguous()
    own = torch.empty_like(parts[0])
    dist.reduce_scatter_tensor(own, parts.flatten(0, 1), group=group)
    return own


class _Gather(torch.autograd.Function):
    """All-gather along ``dim`` over ``group``; the gradient is reduced and scattered."""

    @staticmethod
    def forward(context: Any, part: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        context.group, context.dim = group, dim
        return _gather(part, group, dim)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _scatter(gradient, context.group, context.dim), None, None


class _Scatter(torch.autograd.Function):
    """Reduce and scatter along ``dim`` over ``group``; the gradient is all-gathered."""

    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        context.group, context.dim = group, dim
        return _scatter(values, group, dim)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _gather(gradient, context.group, context.dim), None, None


class _Normalize(torch.autograd.Function):
    """Normalize each token [batch, ..., feature], whose features are split over ``group``.

    Ranks gather the mean and variance of their parts. The variance of the whole is the mean of the
    variances plus the variance of the means (Chan et al. 1983), which cancels no digits, as the
    difference of the mean square and the squared mean would.
    """

    @staticmethod
    def forward(context: Any, part: Tensor, group: dist.ProcessGroup, epsilon: float) -> Tensor:
        wide = part.to(torch.promote_types(part.dtype, torch.float32))
        own = torch.stack([wide.mean(-1), wide.var(-1, correction=0)])
        means, variances = _gather(own.unsqueeze(0), group, 0).unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        scale = (variance + epsilon).rsqrt().unsqueeze(-1)
        normalized = (wide - mean.unsqueeze(-1)) * scale
        context.group, context.dtype = group, part.dtype
        context.save_for_backward(normalized, scale)
        return normalized

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        normalized, scale = context.saved_tensors
        means = torch.stack([gradient.mean(-1), (gradient * normalized).mean(-1)])
        dist.all_reduce(means, group=context.group)
        along, against = (means / context.group.size()).unsqueeze(-1).unbind(0)
        return (scale * (gradient - along - normalized * against)).to(context.dtype), None, None


def _split_parameter(parameter: Tensor, dims: Mapping[str, int], mesh: Mesh) -> nn.Parameter:
    """Return ``parameter`` as a DTensor whose dimension ``dims[axis]`` each axis splits.

    Built from this rank's own values: no communication.
    """
    own, placements = parameter.detach(), []
    assert mesh.arrangement is not None
    for axis in mesh.arrangement.mesh_dim_names or ():
        dim = dims.get(axis)
        placements.append(Replicate() if dim is None else Shard(dim))
        if dim is not None:
            group = _group(mesh, axis)
            own = own.chunk(group.size(), dim)[group.rank()]
    distributed = DTensor.from_local(
        own.clone(memory_format=torch.contiguous_format),
        mesh.arrangement,
        placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(distributed, requires_grad=parameter.requires_grad)


def _local(parameter: Tensor) -> Tensor:
    """Return this rank's part [...] of ``parameter``.

    Its gradient is a partial sum over the axes whose ranks hold the same part: they compute with
    other samples. `reduce_partial_gradients` adds up once a step.
    """
    assert isinstance(parameter, DTensor)
    partial = [Partial() if p.is_replicate() else p for p in parameter.placements]
    return parameter.to_local(grad_placements=partial)


def _narrow(values: Tensor) -> Tensor:
    """Return ``values`` [...] in the data type that autocast computes with, to send fewer bytes."""
    device = values.device.type
    if torch.is_autocast_enabled(device):
        return values.to(torch.get_autocast_dtype(device))
    return values


class _Linear(nn.Module):
    """A linear layer that is split; `_GatherInputs` gathers the inputs of column-parallel ones."""

    def __init__(self, linear: nn.Linear, split: Split, layout: _Layout, mesh: Mesh) -> None:
        super().__init__()
        self.weight = _split_parameter(linear.weight, layout.weights, mesh)
        self.bias: nn.Parameter | None = None
        if linear.bias is not None:
            self.bias = _split_parameter(linear.bias, {layout.outputs: 0}, mesh)
        self._layout, self._weights_group = layout, _group(mesh, "i")
        self._inputs_group = _group(mesh, layout.inputs) if split == "row" else None
        self._sum_group = _group(mesh, layout.summed) if layout.summed else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Map this rank's part [batch, ..., input] to its part [batch, ..., output]."""
        weight = _narrow(_local(self.weight))
        weight = _Gather.apply(weight, self._weights_group, self._layout.gathered_dim)
        if self._inputs_group is not None:
            inputs = _Gather.apply(_narrow(inputs), self._inputs_group, self._layout.inputs_dim)
        outputs = functional.linear(inputs, weight)
        if self._sum_group is not None:
            outputs = _Scatter.apply(outputs, self._sum_group, 0)
        if self.bias is None:
            return outputs
        return outputs + _local(self.bias).to(outputs.dtype)


class _LayerNorm(nn.Module):
    """Layer normalization over features that are split over ``axis``; in fp32 or wider."""

    def __init__(self, norm: nn.LayerNorm, axis: str, mesh: Mesh) -> None:
        super().__init__()
        self.weight = _split_parameter(norm.weight, {axis: 0}, mesh)
        self.bias = _split_parameter(norm.bias, {axis: 0}, mesh)
        self._group, self._epsilon = _group(mesh, axis), norm.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Map this rank's part [batch, ..., feature] to its part of the normalized tokens."""
        normalized = _Normalize.apply(inputs, self._group, self._epsilon)
        outputs: Tensor = normalized * _local(self.weight) + _local(self.bias)
        return outputs


class _GatherInputs:
    """As a forward pre-hook, gather inputs that all column-parallel layers of a module share."""

    def __init__(self, group: dist.ProcessGroup, dim: int) -> None:
        self._group, self._dim = group, dim

    def __call__(self, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (_Gather.apply(_narrow(inputs[0]), self._group, self._dim),)


class _Edge:
    """Parts of samples and features over the arrangement of ``plan``."""

    def __init__(self, plan: ParallelPlan, mesh: Mesh) -> None:
        self._axes, self._features = dict(plan.tensor_axes), plan.tensor_hidden_axis
        self._samples, self._group = plan.tensor_batch_axes, _group(mesh, "tp")
        self._at = {axis: _group(mesh, axis).rank() for axis in self._axes}

    def part(self, whole: Tensor) -> Tensor:
        """Return this rank's samples and features of ``whole`` [batch, ..., feature]."""
        dims = [*((axis, 0) for axis in self._samples), (self._features, -1)]
        for axis, dim in dims:
            whole = whole.chunk(self._axes[axis], dim)[self._at[axis]]
        return whole.contiguous()

    def whole(self, part: Tensor) -> Tensor:
        """Gather the parts [batch, ..., feature] of all ranks: the inverse of `part`."""
        names, count = list(self._axes), len(self._axes)
        parts = _gather(part.unsqueeze(0), self._group, 0).view(*self._axes.values(), *part.shape)
        samples = [names.index(axis) for axis in self._samples]
        middle = range(count + 1, parts.dim() - 1)
        order = [*samples, count, *middle, names.index(self._features), parts.dim() - 1]
        return parts.permute(order).flatten(-2).flatten(0, len(samples))
