"""Which samples a rank needs, which of them it reads, and how its tp group shares them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from hybridperf_reference.engine.mesh import coordinates, own_rank

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["ReadingRole", "TensorParallelInput", "reading_role"]

_MOST_WORKERS = 16


@dataclass(frozen=True, slots=True)
class ReadingRole:
    """What a rank needs of its replica's samples, and with which means it reads them."""

    inputs: bool = True  #: it holds the first stage
    targets: bool = True  #: it holds the last stage
    group: dist.ProcessGroup | None = None  #: tp group, all of which needs the same; None if alone
    readers: int = 1  #: ranks of this machine that read inputs, among which it divides its cores

    @property
    def needs_any(self) -> bool:
        """Return whether the rank needs inputs or targets."""
        return self.inputs or self.targets

    @property
    def workers(self) -> int:
        """Return how many worker processes read for this rank."""
        if not self.inputs:
            return 1  # targets need no decoding
        return min(_MOST_WORKERS, max(1, len(os.sched_getaffinity(0)) // self.readers))

    def in_evaluation(self) -> ReadingRole:
        """Return the role in evaluation, whose labels are in memory."""
        return replace(self, targets=False)


def reading_role(plan: ParallelPlan, mesh: Mesh) -> ReadingRole:
    """Return what this rank needs: the first stage inputs, the last one targets, others nothing."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    first = own_rank() - int(os.environ.get("LOCAL_RANK", "0"))
    places = (coordinates(plan, rank) for rank in range(first, first + local))
    readers = sum(0 in plan.stages_of(at["pp"]) and at["tp"] == 0 for at in places)
    stages = plan.stages_of(mesh.pp_rank)
    return ReadingRole(
        inputs=0 in stages,
        targets=plan.pipeline_stages - 1 in stages,
        group=mesh.group("tp"),
        readers=max(1, readers),
    )


class TensorParallelInput:
    """Broadcasts what the first rank of a tp group read to the others.

    Every sample of one stream must have parts of the same shapes and dtypes, because shapes are
    sent with the first batch only: receiving them on an accelerator would synchronize with it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.reads = dist.get_rank(group) == 0
        self._kinds: list[Any] | None = None  # per part: shape without the batch, dtype

    def send(self, parts: tuple[torch.Tensor, ...]) -> None:
        """Send ``parts`` [batch, ...], which are on the device of the group.

        Raises:
            RuntimeError: if their shapes or dtypes differ from those of the first batch.
        """
        kinds = [(part.shape[1:], part.dtype) for part in parts]
        if self._kinds is None:
            self._agree(kinds)
        elif kinds != self._kinds:
            expected = f"samples of the shapes and dtypes {self._kinds}, as in the first batch"
            raise RuntimeError(f"with tp: expected {expected}, the objective read {kinds}")
        for part in parts:
            self._broadcast(part.contiguous())

    def receive(self, size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the parts [batch, ...] of a batch of ``size`` samples that the first rank sent."""
        kinds = self._agree(None) if self._kinds is None else self._kinds
        parts = tuple(
            torch.empty(size, *shape, dtype=dtype, device=device) for shape, dtype in kinds
        )
        for part in parts:
            self._broadcast(part)
        return parts

    def _agree(self, kinds: list[Any] | None) -> list[Any]:
        """Send or receive shapes and dtypes."""
        held = [kinds]
        dist.broadcast_object_list(held, group=self._group, group_src=0)
        assert held[0] is not None, "the first rank sends them"
        self._kinds = held[0]
        return self._kinds

    def _broadcast(self, part: torch.Tensor) -> None:
        """Broadcast the bytes of ``part``: gloo does not support every dtype."""
        dist.broadcast(part.flatten().view(torch.uint8), group=self._group, group_src=0)
