"""The update of the weights from the gradients of one step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from hybridperf_reference.engine.gradients import clip_gradients, gradient_norm
from hybridperf_reference.engine.optim import build_optimizer, learning_rate
from hybridperf_reference.engine.precision import DTYPES, LossScale

if TYPE_CHECKING:
    from hybridperf.plan import ParallelPlan
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.parallelize import RankStages

__all__ = ["Update"]


class Update:
    """Apply the gradients of a step to the parameters of ``part``.

    This class owns the optimizer, the learning rate, the loss scale and clipping. The executor
    decides when: with delayed updates, after the next step's passes.
    """

    def __init__(self, part: RankStages, task: Task, plan: ParallelPlan, mesh: Mesh) -> None:
        self._task, self._mesh, self._shared = task, mesh, part.shared
        self.parameters = [p for p in part.stage.parameters() if p.requires_grad]
        repeated = part.shared.repeated
        self._counted = [p for p in self.parameters if p not in repeated]  # in the norm
        self.optimizer = build_optimizer(part.stage, task.optimizer)
        self.scale = LossScale(DTYPES[plan.precision])
        self._gradient_norm = torch.zeros(())

    def apply(self, step: int, *, factor: float, measure: bool) -> bool:
        """Apply the gradients of ``step``, averaged over replicas, and clear them.

        Gradients of shared parameters are summed over their copies first. ``factor`` is the
        gradients' loss scale; ``measure`` records their norm, as do clipping and loss scaling. The
        learning rate depends on ``step``. Return False if the update is skipped because a gradient
        is not finite.
        """
        config, parameters, stages = self._task.optimizer, self.parameters, self._mesh.pp_group
        self._shared.sum_gradients()
        if self.scale.is_dynamic:
            self.scale.unscale(parameters, factor)
        if config.clip_norm or self.scale.is_dynamic or measure:
            self._gradient_norm = gradient_norm(self._counted, stages=stages)
        if config.clip_norm:
            clip_gradients(parameters, self._gradient_norm, config.clip_norm)
        applies = not self.scale.is_dynamic or self.scale.adapt(self._gradient_norm.item())
        if applies:
            rate = learning_rate(step, self._task.steps_per_epoch, config)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad()
        return applies

    def gradient_norm(self) -> float | None:
        """Return the last recorded gradient norm; None if it is not finite."""
        norm = self._gradient_norm.item()
        return norm if math.isfinite(norm) else None
