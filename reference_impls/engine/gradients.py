"""What happens to gradients between the backward pass and the optimiser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import (
    Tensor,
    _foreach_mul_,  # one kernel for many tensors has no public name
)

from reference_impls.engine.norms import is_spread, local_parts, tensor_norms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn

__all__ = ["clip_gradients", "finish_gradients", "gradient_norm", "local_gradients"]


def finish_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up gradients of which ranks still hold summands, in one all-reduce a group and type.

    Under sequence parallelism each rank's share of a sequence contributes to the gradients of
    parameters that every rank holds, such as those of a normalisation.
    """
    due: dict[tuple[str, torch.dtype], tuple[dist.ProcessGroup, int, list[Tensor]]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None or not (is_spread(parameter) and is_spread(gradient)):
            continue
        places = zip(gradient.placements, parameter.placements, strict=True)
        for axis, (place, wanted) in enumerate(places):
            if place.is_partial() and wanted.is_replicate():
                group = gradient.device_mesh.get_group(axis)
                key = (group.group_name, gradient.dtype)
                due.setdefault(key, (group, axis, []))[2].append(parameter)
    for group, axis, some in due.values():
        _add_up(group, axis, some)


def gradient_norm(parameters: Iterable[nn.Parameter], stages: dist.ProcessGroup | None) -> Tensor:
    """Return the L2 norm of the gradient of the whole model, alike on every rank.

    ``stages`` are the ranks that hold the other stages of the model.
    """
    own = [parameter for parameter in parameters if parameter.grad is not None]
    total = tensor_norms(local_gradients(own), like=own).square().sum()
    if stages is not None:
        # As in `tensor_norms`: what is offloaded is summed on the device that it left.
        total = total.to(
            next((p.device_mesh.device_type for p in own if is_spread(p)), total.device)
        )
        dist.all_reduce(total, group=stages)
    return total.sqrt()


def clip_gradients(
    parameters: Iterable[nn.Parameter], most: float, stages: dist.ProcessGroup | None
) -> Tensor:
    """Scale gradients down so that their norm over the whole model is at most ``most``.

    Returns the norm before, as `gradient_norm` does; where it is not finite, neither are the
    gradients after (Pascanu et al. 2013).
    """
    own = [parameter for parameter in parameters if parameter.grad is not None]
    norm = gradient_norm(own, stages)
    gradients = local_gradients(own)
    _foreach_mul_(gradients, (most / norm).clamp(max=1.0).to(gradients[0].device))
    return norm


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return this rank's part of each parameter's gradient, which lies as the parameter does."""
    gradients = []
    for parameter in parameters:
        gradient = parameter.grad
        assert gradient is not None
        if is_spread(parameter) and is_spread(gradient):
            assert gradient.placements == parameter.placements, "finish_gradients() comes first"
        gradients.append(gradient)
    return local_parts(gradients)


def _add_up(group: dist.ProcessGroup, axis: int, parameters: list[Tensor]) -> None:
    """Sum the gradients of ``parameters`` over ``group``, the axis ``axis`` of their meshes."""
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
