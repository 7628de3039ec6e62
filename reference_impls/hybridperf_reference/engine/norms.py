"""Tensors that may be sharded: their parts, the whole, zeros like them, and their norms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import (
    Tensor,
    _foreach_norm,  # one kernel for many tensors has no public name
    nn,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeGuard

    from torch.distributed.tensor import DTensor

__all__ = ["is_dtensor", "local_parts", "tensor_norms", "whole_tensor", "zeros_like"]


def is_dtensor(tensor: Tensor) -> TypeGuard[DTensor]:
    """Return whether ``tensor`` [...] is a DTensor, without the seconds that importing it takes."""
    return hasattr(tensor, "placements")


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the local shard [...] of each tensor; writing to it writes to the tensor."""
    return [tensor if type(tensor) in _PLAIN else _local(tensor) for tensor in tensors]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_dtensor(tensor) else tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return ``tensor`` [...] unsharded; a collective over the ranks that share it."""
    if not is_dtensor(tensor):
        return tensor
    from torch.distributed.tensor import Replicate, Shard

    placements = list(tensor.placements)
    dims = [place.dim for place in placements if type(place) is Shard]
    if len(set(dims)) == len(dims):
        return tensor.full_tensor()
    # Innermost axis first. At once, torch would log that the axes of a dimension are not merged.
    for axis in reversed(range(len(placements))):
        placements[axis] = Replicate()
        tensor = tensor.redistribute(placements=placements)
    return tensor.to_local()


def zeros_like(tensor: Tensor) -> Tensor:
    """Return zeros in the shape, sharding and data type of ``tensor`` [...].

    For a DTensor, torch.zeros_like first works out how zeros of this shape may be sharded, which
    takes 10 ms on a mesh of three axes.
    """
    local = _local(tensor)
    if not is_dtensor(tensor) or local.device.type != tensor.device_mesh.device_type:  # offloaded
        return torch.zeros_like(tensor)
    zeros: Tensor = tensor.from_local(
        torch.zeros_like(local),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
    return zeros


_PLAIN = {Tensor, nn.Parameter}  # a fast path, for most tensors of most plans


def tensor_norms(parts: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Return the L2 norms [tensor] of whole tensors from their local shards ``parts`` [...].

    In fp32 or wider. A part has the sharding of the tensor [...] in ``like`` at its index. One
    all-reduce per process group that a tensor is sharded over; all its ranks must call this.
    """
    width = torch.promote_types(parts[0].dtype, torch.float32)
    squares = torch.stack(_foreach_norm(list(parts), 2, dtype=width)).square()
    sharded: dict[str, tuple[dist.ProcessGroup, str, list[int]]] = {}
    for number, tensor in enumerate(like):
        for group, device in _sharding_groups(tensor):
            sharded.setdefault(group.group_name, (group, device, []))[2].append(number)
    for group, device, numbers in sharded.values():
        # Parameters may be offloaded to the CPU; their group reduces on the mesh's device.
        sums = squares[numbers].to(device)
        dist.all_reduce(sums, group=group)
        squares[numbers] = sums.to(squares.device)
    return squares.sqrt()


def _sharding_groups(tensor: Tensor) -> Iterator[tuple[dist.ProcessGroup, str]]:
    """Yield the groups over which ``tensor`` is sharded, with the device type of its mesh."""
    if not is_dtensor(tensor):
        return
    mesh = tensor.device_mesh
    for axis, placement in enumerate(tensor.placements):
        if not placement.is_replicate() and mesh.size(axis) > 1:
            yield mesh.get_group(axis), mesh.device_type
