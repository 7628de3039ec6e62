"""Gradients before the optimizer: zeros for unused parameters, norm and clipping.

Every trainable parameter takes part in every step: unused parameters have zero gradients. So the
reduced parameters never depend on the data of a rank.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import (
    Tensor,
    _foreach_mul_,  # one kernel for many tensors has no public name
)

from hybridperf_reference.engine.mesh import local_device
from hybridperf_reference.engine.norms import is_dtensor, local_parts, tensor_norms, zeros_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn
    from torch.autograd.graph import Node

__all__ = [
    "add_zero_gradients",
    "clip_gradients",
    "flatten",
    "gradient_norm",
    "local_gradients",
    "reach_all_parameters",
    "reduce_partial_gradients",
    "unused_tensors",
]


def unused_tensors(outputs: Tensor, tensors: Sequence[Tensor]) -> list[int]:
    """Return the indices of ``tensors`` [...] that ``outputs`` [...] do not depend on.

    ``tensors`` are leaves of the graph, or inner tensors where the search ends.
    """
    inner = {tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None}
    left = {id(tensor.grad_fn or tensor): number for number, tensor in enumerate(tensors)}
    seen, edges = set[object](), [(outputs.grad_fn, 0)]
    while edges and left:
        further: list[tuple[Node | None, int]] = []
        for node, _ in edges:
            if node is None or node in seen:
                continue
            seen.add(node)
            following = () if node in inner else node.next_functions
            further += following
            if not following:  # or else the node accumulates the gradient of a leaf
                left.pop(id(node if node in inner else getattr(node, "variable", None)), None)
        edges = further
    return [*left.values()]


def reach_all_parameters(module: nn.Module) -> None:
    """Make every backward pass through ``module`` reach all of its trainable parameters.

    Unused parameters and inputs get gradients of zeros. So replicas reduce the same gradients in
    the backward pass, whatever their data.
    """
    places = {  # FSDP2 replaces parameters for the duration of a pass
        parameter: (part._parameters, name)  # noqa: SLF001 - looked up without a walk
        for part in module.modules()
        for name, parameter in part._parameters.items()  # noqa: SLF001
        if parameter is not None and parameter.requires_grad
    }

    def reach(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and outputs.is_floating_point()):
            return outputs
        found = [registry[name] for registry, name in places.values()]
        tensors = [each for each in (*found, *inputs) if each is not None and each.requires_grad]
        unused = [tensors[number] for number in unused_tensors(outputs, tensors)]
        return _Reach.apply(outputs, *unused) if unused else outputs

    module.register_forward_hook(reach)


class _Reach(torch.autograd.Function):
    """The identity of ``outputs`` [...], with gradients of zeros for ``unused`` [...]."""

    @staticmethod
    def forward(context: Any, outputs: Tensor, *unused: Tensor) -> Tensor:
        context.unused = unused
        return outputs.clone()  # a view could not be detached in place, as pipelines do

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients[0], *(zeros_like(each) for each in context.unused)


def add_zero_gradients(parameters: Iterable[Tensor]) -> None:
    """Set missing gradients of ``parameters`` [...] to zeros."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = zeros_like(parameter)


def reduce_partial_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """All-reduce gradients [...] that are partial sums, by process group and data type.

    Under sequence parallelism each rank computes the gradients of replicated parameters, such as a
    LayerNorm's, from its own tokens only. Their placement changes from ``Partial`` to
    ``Replicate``.
    """
    due: dict[tuple[str, torch.dtype], tuple[dist.ProcessGroup, int, list[Tensor]]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or not (is_dtensor(parameter) and is_dtensor(gradient)):
            continue
        places = zip(gradient.placements, parameter.placements, strict=True)
        for axis, (place, wanted) in enumerate(places):
            if place.is_partial() and wanted.is_replicate():
                group = gradient.device_mesh.get_group(axis)
                key = (group.group_name, gradient.dtype)
                due.setdefault(key, (group, axis, []))[2].append(parameter)
    for group, axis, some in due.values():
        _all_reduce_partial(group, axis, some)


@contextlib.contextmanager
def flatten(
    tensors: Sequence[Tensor],
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[Tensor]:
    """Yield all ``tensors`` [...] as one copy [element], and write it back at the end.

    For a single collective over all of them. ``device`` and ``dtype`` default to the tensors'.
    """
    flat = torch.cat([tensor.flatten() for tensor in tensors]).to(device=device, dtype=dtype)
    yield flat
    for tensor, values in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


def gradient_norm(parameters: Iterable[nn.Parameter], stages: dist.ProcessGroup | None) -> Tensor:
    """Return the L2 norm [] of the whole model's gradient, identical on every rank.

    ``stages`` is the process group of the model's pipeline stages, None without a pipeline.
    """
    own = [parameter for parameter in parameters if parameter.grad is not None]
    if own:
        total = tensor_norms(local_gradients(own), like=own).square().sum()
    else:  # nothing in this stage is trained
        total = torch.zeros((), device=local_device())
    if stages is not None:
        # As in `tensor_norms`, offloaded gradients are reduced on the mesh's device. In fp64, since
        # the data types of stages may differ.
        device = next((p.device_mesh.device_type for p in own if is_dtensor(p)), total.device)
        total = total.to(device, torch.float64)
        dist.all_reduce(total, group=stages)
    return total.sqrt()


def clip_gradients(parameters: Iterable[nn.Parameter], norm: Tensor, most: float) -> None:
    """Clip gradients in place to the norm ``most`` of the whole model's (Pascanu et al. 2013).

    ``norm`` [] is their `gradient_norm`. If it is not finite, neither are the clipped gradients.
    """
    gradients = local_gradients(p for p in parameters if p.grad is not None)
    if gradients:
        _foreach_mul_(gradients, (most / norm).clamp(max=1.0).to(gradients[0].device))


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the local shards [...] of the parameters' gradients.

    Every parameter must have a gradient.
    """
    gradients = []
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None
        if type(gradient) is not Tensor and is_dtensor(parameter) and is_dtensor(gradient):
            assert gradient.placements == parameter.placements, "reduce_partial_gradients() first"
        gradients.append(gradient)
    return local_parts(gradients)


def _all_reduce_partial(group: dist.ProcessGroup, axis: int, parameters: list[Tensor]) -> None:
    """Sum gradients of ``parameters`` over ``group``, dimension ``axis`` of their device mesh."""
    from torch.distributed.tensor import DTensor, Replicate

    gradients = [parameter.grad for parameter in parameters]
    parts = local_parts(gradient for gradient in gradients if gradient is not None)
    flat = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(flat, group=group)
    sums = flat.split([part.numel() for part in parts])
    for parameter, gradient, part, whole in zip(parameters, gradients, parts, sums, strict=True):
        assert isinstance(gradient, DTensor)
        placements = list(gradient.placements)
        placements[axis] = Replicate()
        parameter.grad = DTensor.from_local(
            whole.view_as(part),
            gradient.device_mesh,
            placements,
            shape=gradient.shape,
            stride=gradient.stride(),
        )
