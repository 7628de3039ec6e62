"""What tells whether training goes well: the loss, and what of it is not finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impls.engine.mesh import Mesh

__all__ = ["LossMean"]


class LossMean:
    """The mean loss of the micro-batches of all replicas; only ranks of the last stage see one."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._seen: list[Tensor] = []

    def see(self, loss: Tensor) -> None:
        """Count the loss of one micro-batch, without waiting for it."""
        self._seen.append(loss.detach())

    def collect(self) -> tuple[float | None, int]:
        """Return the mean since the last call, and how many were not finite: alike on every rank.

        The mean is None where there is no finite loss.
        """
        device = self._mesh.device
        losses = torch.stack(self._seen) if self._seen else torch.zeros(0, device=device)
        self._seen.clear()
        finite = losses.isfinite()
        sums = torch.stack([losses[finite].sum(), finite.sum(), (~finite).sum()]).float()
        total, finite, others = self._mesh.sum(sums).tolist()
        # Ranks of one tp group see the same losses, which leaves the mean as it is.
        return (total / finite if finite else None), round(others)
