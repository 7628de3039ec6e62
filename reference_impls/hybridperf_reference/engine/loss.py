"""The loss of a global batch: means over its targets on all replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from torch import Tensor

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Objective
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["BatchLoss"]


class BatchLoss:
    """The mean loss over the targets of a global batch, computed micro-batch by micro-batch.

    Samples may have different numbers of targets, so a micro-batch contributes its summed loss
    divided by the number of targets in the whole batch. A loss of several terms is the sum of
    their means. Only ranks of the last stage compute it.
    """

    def __init__(self, objective: Objective, plan: ParallelPlan, mesh: Mesh) -> None:
        self._objective, self._mesh = objective, mesh
        self._replicas, self._parts = plan.dp, plan.dp * plan.microbatches
        self._fixed_count: bool | None = None  # whether shapes determine the number of targets
        # Numbers in the global batch: of each term where shapes determine them, else [] or [term].
        self._targets: Tensor | tuple[int, ...] = ()
        self._scale = 1.0
        self._seen: list[tuple[Tensor, float]] = []  # contributions, and the factor in each

    def begin_step(self, targets: Tensor, scale: float) -> None:
        """Count the global batch's targets; ``targets`` [batch, ...] are this replica's.

        ``scale`` is the loss scale of the step.
        """
        self._scale = scale
        if self._fixed_count is None:
            self._fixed_count = self._follows_from_shape(targets)
        count = self._objective.count(targets)
        if self._fixed_count and not isinstance(count, torch.Tensor):
            counts = count if isinstance(count, tuple) else (count,)
            self._targets = tuple(max(1, each * self._replicas) for each in counts)
            return
        total = torch.as_tensor(count, device=self._mesh.device).clone()
        for group in self._mesh.replica_groups():
            dist.all_reduce(total, group=group)
        self._targets = total.clamp(min=1)  # without targets the loss is 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return a micro-batch's contribution [], times the number of replicas and the loss scale.

        ``outputs`` and ``targets`` are [micro-batch, ...]. The gradient accumulated over
        micro-batches and averaged over replicas is then the scaled gradient of the mean loss over
        the global batch.
        """
        factor = self._replicas * self._scale
        sums = self._objective.loss(outputs, targets)
        if isinstance(self._targets, tuple):
            terms = sums.unbind() if sums.dim() else (sums,)
            # One operation on the device for each term, not two.
            first, *others = (
                each / (number / factor) for each, number in zip(terms, self._targets, strict=True)
            )
            contribution = sum(others, start=first)
        else:
            contribution = (sums * factor / self._targets).sum()
        self._seen.append((contribution.detach(), factor))
        return contribution

    def collect(self) -> tuple[float | None, int]:
        """Return the mean loss since the last call and the number of non-finite contributions.

        Both are identical on every rank. The mean is None if no contribution was finite.
        """
        device = self._mesh.device
        losses = torch.zeros(0, device=device)
        if self._seen:
            losses = torch.stack([contribution / factor for contribution, factor in self._seen])
        self._seen.clear()
        finite = losses.isfinite()
        sums = torch.stack([losses[finite].sum(), finite.sum(), (~finite).sum()]).float()
        total, count, others = self._mesh.sum(sums).tolist()
        # Ranks of one tp or cp group contribute equal losses, which does not change the mean.
        return (total * self._parts / count if count else None), round(others)

    def _follows_from_shape(self, targets: Tensor) -> bool:
        """Return whether the shape of ``targets`` [batch, ...] alone determines their number.

        All replicas then have the same number, without an all-reduce.
        """
        try:
            return isinstance(self._objective.count(targets.to("meta")), int | tuple)
        except (RuntimeError, TypeError, ValueError):
            return False
