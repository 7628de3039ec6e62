"""Gradients between the backward pass and the optimizer: partial sums, norm and clipping."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import (
    Tensor,
    _foreach_mul_,  # one kernel for many tensors has no public name
)

from hybridperf_reference.engine.mesh import local_device
from hybridperf_reference.engine.norms import is_dtensor, local_parts, tensor_norms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

__all__ = [
    "clip_gradients",
    "flattened",
    "gradient_norm",
    "local_gradients",
    "reduce_partial_gradients",
]


def reduce_partial_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """All-reduce gradients [...] that are partial sums, by process group and data type.

    Under sequence parallelism each rank computes the gradients of replicated parameters, such as
    those of a LayerNorm, from its own tokens only. They have the placement ``Partial``, and
    ``Replicate`` afterwards.
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
def flattened(
    tensors: Sequence[Tensor],
    *,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Iterator[Tensor]:
    """Yield all ``tensors`` [...] as one copy [element], and write it back at the end.

    A single collective then serves all of them. The copy has the device and data type of the
    tensors unless stated.
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


def clip_gradients(
    parameters: Iterable[nn.Parameter], most: float, stages: dist.ProcessGroup | None
) -> Tensor:
    """Clip gradients in place to the norm ``most`` over the whole model (Pascanu et al. 2013).

    Return the norm [] before clipping, as `gradient_norm` does. If it is not finite, neither are
    the clipped gradients.
    """
    own = [parameter for parameter in parameters if parameter.grad is not None]
    norm = gradient_norm(own, stages)
    gradients = local_gradients(own)
    if gradients:
        _foreach_mul_(gradients, (most / norm).clamp(max=1.0).to(gradients[0].device))
    return norm


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the local shard [...] of each parameter's gradient, in the shape of the parameter's.

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
