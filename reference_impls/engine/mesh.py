"""Where a rank stands: its device, its replica, its stage, and whom it talks to."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from suite.plan import ParallelPlan

__all__ = ["Mesh", "build_mesh", "join_ranks", "local_device", "own_rank"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes ``replicate`` and ``shard``, which are dp together, ``pp`` and ``tp``.

    Ranks of one tp group are neighbours, and so are those of one pipeline.
    """

    device: torch.device
    axes: DeviceMesh | None  #: None where there is one rank
    replica: int = 0  #: coordinate on dp
    stage: int = 0  #: coordinate on the axis pp
    part: int = 0  #: coordinate on the axis tp
    groups: Mapping[str, dist.ProcessGroup] = field(default_factory=dict)
    #: of the axes with more than one rank; asking ``axes`` takes milliseconds

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """Return the ranks that differ from this one on ``axis`` alone; None without others."""
        return self.groups.get(axis)

    def replica_groups(self) -> list[dist.ProcessGroup]:
        """Return the groups that together hold all replicas of what this rank holds."""
        groups = (self.group(axis) for axis in ("replicate", "shard"))
        return [group for group in groups if group is not None]

    @property
    def pp_group(self) -> dist.ProcessGroup | None:
        """Return the stages of this replica; None where there is one."""
        return self.group("pp")

    def barrier(self) -> None:
        """Wait for every rank."""
        if dist.is_initialized():
            dist.barrier()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``values`` over all ranks."""
        if dist.is_initialized():
            dist.all_reduce(values)
        return values

    def gather(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the ``values`` of every rank, in rank order."""
        if not dist.is_initialized():
            return [values]
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, values)
        return parts


def local_device() -> torch.device:
    """Return this rank's device: its accelerator where torch has one, else the processor."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    torch.accelerator.set_device_index(index)
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    return torch.device(accelerator.type, index)


def own_rank() -> int:
    """Return which of the ranks that have met this one is; 0 where there is one."""
    return dist.get_rank() if dist.is_initialized() else 0


@contextlib.contextmanager
def join_ranks(plan: ParallelPlan) -> Iterator[torch.device]:
    """Meet the other ranks, with the collectives library of the device's kind.

    Raises:
        RuntimeError: where there are not exactly as many ranks as the plan needs.
    """
    device, ranks = local_device(), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks != plan.ranks:
        raise RuntimeError(f"plan '{plan}' needs {plan.ranks} ranks, torchrun started {ranks}")
    if ranks == 1:
        yield device
        return
    dist.init_process_group(dist.get_default_backend_for_device(device))
    yield device
    # Without it, gloo's last sender resets the sockets of slower ranks.
    dist.barrier()
    dist.destroy_process_group()


def build_mesh(plan: ParallelPlan, device: torch.device) -> Mesh:
    """Arrange the ranks that have met by the axes of ``plan``."""
    if plan.ranks == 1:
        return Mesh(device, None)
    sizes = {
        "replicate": plan.dp // plan.shards,
        "shard": plan.shards,
        "pp": plan.pp,
        "tp": plan.tp,
    }
    axes = init_device_mesh(device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    replicate, shard, stage, part = axes.get_coordinate() or ()
    groups = {axis: axes.get_group(axis) for axis, size in sizes.items() if size > 1}
    return Mesh(device, axes, replicate * plan.shards + shard, stage, part, groups)
