"""Predictions of a model whose stages are on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from hybridperf_reference.engine.data_parallel import unwrapped

if TYPE_CHECKING:
    from torch import Tensor

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.parallelize import Part

__all__ = ["StagePredictor"]


class StagePredictor:
    """Pass samples through the stages of a pipeline, one stage after the other."""

    def __init__(self, part: Part, plan: ParallelPlan, mesh: Mesh) -> None:
        self._mesh, self._edges = mesh, part.edges
        numbers = plan.stages_of(mesh.pp_rank)
        self._modules = dict(zip(numbers, map(unwrapped, part.modules), strict=True))
        self._holders = {s: rank for rank in range(plan.pp) for s in plan.stages_of(rank)}
        self._last = plan.pipeline_stages - 1

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs for ``inputs``, both [batch, ...], on the last stage's rank, else None.

        ``inputs`` are those of ``samples`` samples; only the rank of the first stage needs them.
        """
        values, own, group = inputs, self._mesh.pp_rank, self._mesh.pp_group
        for number, module in self._modules.items():
            edge = self._edges[number]
            if number > 0 and self._holders[number - 1] != own:
                shape = (samples, *edge.shape)
                values = torch.empty(shape, dtype=edge.dtype, device=self._mesh.device)
                dist.recv(values, group=group, group_src=self._holders[number - 1])
            values = module(values)
            if number < self._last and self._holders[number + 1] != own:
                assert values is not None
                dist.send(values, group=group, group_dst=self._holders[number + 1])
        return values if self._last in self._modules else None
