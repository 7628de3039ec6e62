"""Norms of tensors that may be spread over ranks, in as few collectives as there are groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import (
    Tensor,
    _foreach_norm,  # one kernel for many tensors has no public name
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TypeGuard

    from torch.distributed.tensor import DTensor

__all__ = ["is_spread", "local_parts", "tensor_norms"]


def is_spread(tensor: Tensor) -> TypeGuard[DTensor]:
    """Tell whether ``tensor`` is a DTensor, without the seconds that importing DTensor costs."""
    return hasattr(tensor, "placements")


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return what this rank holds of each tensor; writing there writes to the tensor."""
    return [tensor.to_local() if is_spread(tensor) else tensor for tensor in tensors]


def tensor_norms(parts: Sequence[Tensor], like: Sequence[Tensor]) -> Tensor:
    """Return the L2 norms of whole tensors, of which this rank holds ``parts``: [tensor].

    In fp32 at least. Each is spread over ranks as the tensor ``like`` it. One all-reduce for each
    process group that some are sharded over, whatever their number; all of its ranks take part.
    """
    width = torch.promote_types(parts[0].dtype, torch.float32)
    squares = torch.stack(_foreach_norm(list(parts), 2, dtype=width)).square()
    sharded: dict[str, tuple[dist.ProcessGroup, str, list[int]]] = {}
    for number, tensor in enumerate(like):
        for group, device in _shared_with(tensor):
            sharded.setdefault(group.group_name, (group, device, []))[2].append(number)
    for group, device, numbers in sharded.values():
        # Parameters may be offloaded; their group's library speaks for the device they left.
        sums = squares[numbers].to(device)
        dist.all_reduce(sums, group=group)
        squares[numbers] = sums.to(squares.device)
    return squares.sqrt()


def _shared_with(tensor: Tensor) -> Iterator[tuple[dist.ProcessGroup, str]]:
    """Yield the groups whose ranks hold other parts of ``tensor``, and their kind of device."""
    if not is_spread(tensor):
        return
    mesh = tensor.device_mesh
    for axis, placement in enumerate(tensor.placements):
        if not placement.is_replicate() and mesh.size(axis) > 1:
            yield mesh.get_group(axis), mesh.device_type
