"""The update policy: when gradients are applied to the weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from hybridperf_reference.engine.gradients import clip_gradients, gradient_norm
from hybridperf_reference.engine.learning_rate import learning_rate
from hybridperf_reference.engine.optim import build_optimizer
from hybridperf_reference.engine.precision import DTYPES, LossScale

if TYPE_CHECKING:
    from torch import nn

    from hybridperf.plan import ParallelPlan
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.data_parallel import DataParallel
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["SynchronousUpdate"]


class SynchronousUpdate:
    """Apply the gradients of a step before the next step's forward pass.

    In a step, ``before_forward`` comes first and ``after_backward`` last; ``drain`` precedes
    evaluations and checkpoints. This class owns the optimizer, the learning rate, the loss scale
    and clipping, so that another policy can apply gradients later with the values of their own
    step.
    """

    def __init__(
        self, stage: nn.Module, task: Task, plan: ParallelPlan, mesh: Mesh, replicas: DataParallel
    ) -> None:
        self._task, self._mesh, self._replicas = task, mesh, replicas
        self._parameters = [p for p in stage.parameters() if p.requires_grad]
        self.optimizer = build_optimizer(stage, task.optimizer)
        self.scale = LossScale(DTYPES[plan.precision])
        self._gradient_norm = torch.zeros(())

    def before_forward(self, step: int) -> None:
        """Prepare the weights that ``step`` computes with; nothing to do here."""

    def after_backward(self, step: int, *, measure: bool) -> None:
        """Apply the gradients of ``step``, and clear them; ``measure`` records their norm.

        The norm is also recorded where clipping or loss scaling needs it.
        """
        self._replicas.before_step()
        config, parameters, stages = self._task.optimizer, self._parameters, self._mesh.pp_group
        if self.scale.is_dynamic:
            self.scale.unscale(parameters)
        if config.clip_norm:
            self._gradient_norm = clip_gradients(parameters, config.clip_norm, stages=stages)
        elif self.scale.is_dynamic or measure:
            self._gradient_norm = gradient_norm(parameters, stages=stages)
        if not self.scale.is_dynamic or self.scale.adapt(self._gradient_norm.item()):
            rate = learning_rate(step, self._task.steps_per_epoch, config)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        self.optimizer.zero_grad()

    def drain(self) -> None:
        """Apply pending updates, and make replicas agree."""
        self._replicas.drain()

    def gradient_norm(self) -> float | None:
        """Return the last recorded gradient norm; None if it is not finite."""
        norm = self._gradient_norm.item()
        return norm if math.isfinite(norm) else None
