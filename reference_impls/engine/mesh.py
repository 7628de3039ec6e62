"""Where a rank stands: its device, its replica, its stage, and whom it talks to."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.plan import ParallelPlan

__all__ = ["Mesh", "build_mesh", "join_ranks", "local_device"]


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes ``dp`` and ``pp``: ranks of one pipeline are neighbours."""

    device: torch.device
    replica: int  #: coordinate on the axis dp
    stage: int  #: coordinate on the axis pp
    dp_group: dist.ProcessGroup | None  #: the replicas of this stage; None where there is one
    pp_group: dist.ProcessGroup | None  #: the stages of this replica; None where there is one

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
        return Mesh(device, 0, 0, None, None)
    axes = init_device_mesh(device.type, (plan.dp, plan.pp), mesh_dim_names=("dp", "pp"))
    return Mesh(
        device,
        axes.get_local_rank("dp"),
        axes.get_local_rank("pp"),
        axes.get_group("dp") if plan.dp > 1 else None,
        axes.get_group("pp") if plan.pp > 1 else None,
    )
