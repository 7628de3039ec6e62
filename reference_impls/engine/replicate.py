"""Data parallelism: replicas of a stage that share gradients and BatchNorm statistics."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from reference_impls.engine.gradients import local_gradients

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from reference_impls.engine.mesh import Mesh
    from reference_impls.engine.stage import Stage

__all__ = ["apply_replication", "average_buffers", "average_gradients"]

_OPTIONS = inspect.signature(DistributedDataParallel).parameters
# Renamed in torch 2.15, which warns of the old name.
_NAME = "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"
_OWN_BUFFERS: dict[str, Any] = {_NAME: False}


def apply_replication(stage: Stage, *, mesh: Mesh) -> nn.Module:
    """Return ``stage`` with its gradients averaged over the axis replicate, during backward."""
    # Statistics of BatchNorm are averaged where they are read, not broadcast at every forward.
    return DistributedDataParallel(
        stage, process_group=mesh.group("replicate"), gradient_as_bucket_view=True, **_OWN_BUFFERS
    )


def average_gradients(module: nn.Module, *, mesh: Mesh) -> None:
    """Average gradients over the replicas of ``module``, in one all-reduce after backward."""
    own = [parameter for parameter in module.parameters() if parameter.grad is not None]
    _average(local_gradients(own), mesh)


def average_buffers(stage: Stage, *, mesh: Mesh) -> None:
    """Average running statistics over the replicas of ``stage``, in one all-reduce."""
    _average([buffer for buffer in stage.buffers() if buffer.is_floating_point()], mesh)


def _average(tensors: Iterable[Tensor], mesh: Mesh) -> None:
    tensors = list(tensors)
    groups = mesh.replica_groups()
    if not groups or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    for group in groups:
        dist.all_reduce(flat, group=group)
        flat /= dist.get_world_size(group)
    for tensor, mean in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(mean.view_as(tensor))
