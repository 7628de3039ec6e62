"""Data parallelism: replicas of a stage that share gradients and BatchNorm statistics."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch import nn

    from reference_impls.engine.mesh import Mesh
    from reference_impls.engine.stage import Stage

__all__ = ["apply_replication", "average_buffers"]

_OPTIONS = inspect.signature(DistributedDataParallel).parameters
# Renamed in torch 2.15, which warns of the old name.
_NAME = "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"
_OWN_BUFFERS: dict[str, Any] = {_NAME: False}


def apply_replication(stage: Stage, *, mesh: Mesh) -> nn.Module:
    """Return ``stage`` with its gradients averaged over the axis dp, overlapped with backward."""
    if mesh.dp_group is None:
        return stage
    # Statistics of BatchNorm are averaged where they are read, not broadcast at every forward.
    return DistributedDataParallel(
        stage, process_group=mesh.dp_group, gradient_as_bucket_view=True, **_OWN_BUFFERS
    )


def average_buffers(stage: Stage, *, mesh: Mesh) -> None:
    """Average running statistics over the replicas of ``stage``, in one all-reduce."""
    buffers = [buffer for buffer in stage.buffers() if buffer.is_floating_point()]
    if mesh.dp_group is None or not buffers:
        return
    flat = torch.cat([buffer.flatten() for buffer in buffers])
    dist.all_reduce(flat, group=mesh.dp_group)
    flat /= dist.get_world_size(mesh.dp_group)
    for buffer, mean in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(mean.view_as(buffer))
