"""Train a chain under a plan: one loop for all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from reference_impls.engine.checkpoint import Progress, load_checkpoint, save_checkpoint
from reference_impls.engine.execute import Executor, WholeModel
from reference_impls.engine.feed import feed
from reference_impls.engine.gradients import clip_gradients, gradient_norm
from reference_impls.engine.health import LossMean
from reference_impls.engine.norms import is_spread
from reference_impls.engine.optim import build_optimizer
from reference_impls.engine.parallelize import parallelize, settle
from reference_impls.engine.partition import forward_flops, minimax_partition
from reference_impls.engine.precision import DTYPES, LossScale
from reference_impls.engine.random_numbers import begin_random_numbers
from reference_impls.engine.replicate import average_buffers
from reference_impls.engine.schedule import learning_rate
from reference_impls.engine.spent import spent_time
from reference_impls.engine.timing import StepTimer
from suite.logs import keys

if TYPE_CHECKING:
    from pathlib import Path

    from reference_impls.engine.chain import Chain
    from reference_impls.engine.mesh import Mesh
    from suite.plan import ParallelPlan
    from suite.runs.access import EvaluationData, TrainingData
    from suite.tasks.task import Task

__all__ = ["Trainer"]

_EVALUATION_CHUNK = 64  # samples: activations of more no longer fit the processor's cache


class Trainer:
    """Train ``chain`` for ``task`` under ``plan``: one rank's part of it."""

    def __init__(self, chain: Chain, task: Task, plan: ParallelPlan, mesh: Mesh, seed: int) -> None:
        self._chain, self._task, self._plan, self._mesh, self._seed = chain, task, plan, mesh, seed
        self._flops = forward_flops(chain)
        self._cuts = minimax_partition(self._flops, plan.pipeline_stages)
        self._part = parallelize(chain, self._cuts, plan=plan, mesh=mesh)
        self._stage = self._part.stage
        self._parameters = list(self._stage.parameters())  # a walk that is long beside small steps
        self._timer = StepTimer(mesh.device)
        self._losses, self._scale = LossMean(mesh), LossScale(DTYPES[plan.precision])
        self._gradient_norm = torch.zeros(())
        self._replica_batch = task.training.global_batch_size // plan.dp
        self._executor = self._build_executor()
        self._optimizer = build_optimizer(self._stage, task.optimizer)
        self._steps = 0  # of training, taken so far
        self._samples = 0  # trained on since statistics were last asked for
        begin_random_numbers(seed, 0, mesh.replica)

    def partition_entry(self) -> tuple[str, list[dict[str, object]]]:
        """Return the log entry that says which units each stage holds, and their FLOPs."""
        stages = [
            {
                "units": [unit.name for unit in self._chain.units[cut]],
                "forward_flops_per_sample": sum(self._flops[cut]),
            }
            for cut in self._cuts
        ]
        return keys.PARTITION, stages

    def warm_up(self) -> None:
        """Allocate, connect and tune on synthetic samples, and leave no trace in the model."""
        before = {name: value.clone() for name, value in self._stage.state_dict().items()}
        example = self._chain.example(self._replica_batch)
        inputs, targets = (part.to(self._mesh.device) for part in example)
        for _ in range(2):  # the second step runs in the buckets that the first one orders
            self._compute(inputs, targets)
            self._optimizer.zero_grad()
        self._stage.eval()
        with torch.no_grad():
            self._executor.predict(inputs[:_EVALUATION_CHUNK])
        self._stage.load_state_dict(before)
        self._timer.collect()
        self._losses.collect()
        self._mesh.barrier()

    def train(self, data: TrainingData) -> None:
        """Train through the batches of a block, but for those that came before a checkpoint."""
        self._stage.train()
        first = self._mesh.replica * self._replica_batch
        own = slice(first, first + self._replica_batch)
        last = self._task.steps(data.block)[-1]
        fed = feed(self._chain.objective, data, own, self._mesh.device, self._timer, self._steps)
        for batch, inputs, targets in self._timer.each("input", fed):
            rate = learning_rate(batch.step, self._task.steps_per_epoch, self._task.optimizer)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            with self._timer.part("step"):
                self._compute(inputs, targets)
            with self._timer.part("optimizer"):
                self._update(measure=batch.step == last)
            self._steps = batch.step + 1
            self._samples += len(batch.indices)

    def evaluate(self, data: EvaluationData) -> float:
        """Return the share of the labels of all held-out samples that is predicted right.

        Each replica takes a share of the samples; the answer is the same on every rank.
        """
        objective, replicas = self._chain.objective, self._plan.dp
        average_buffers(self._stage, mesh=self._mesh)
        self._stage.eval()
        counts = torch.zeros(2, dtype=torch.int64, device=self._mesh.device)  # right, counted
        most = -(-len(data) // replicas)
        passes = -(-most // _EVALUATION_CHUNK)  # of the replica with the largest share
        with torch.no_grad():
            for chunk in data.chunks(self._mesh.replica, replicas, _EVALUATION_CHUNK):
                passes -= 1
                inputs = objective.evaluation(data.samples.inputs[chunk]).to(self._mesh.device)
                outputs = self._executor.predict(inputs)
                if outputs is not None:
                    labels = torch.from_numpy(data.samples.labels[chunk]).to(self._mesh.device)
                    counts[0] += (objective.predictions(outputs) == labels).sum()
                    counts[1] += labels.numel()
            for _ in range(passes if self._plan.zero else 0):  # others wait for this one's shards
                self._executor.predict(self._chain.example(1)[0].to(self._mesh.device))
        correct, counted = self._mesh.sum(counts).tolist()
        return float(correct / counted)

    def weights(self) -> dict[str, Tensor]:
        """Return this rank's parameters and buffers, whole, by global names.

        Every rank must call this: what is spread over some is gathered from them.
        """
        return {
            name: _whole(value, self._mesh.device)
            for name, value in self._stage.state_dict().items()
        }

    def save(self, folder: Path) -> None:
        """Save a checkpoint into ``folder``, all ranks at once, after an evaluation.

        That has made replicas agree on their running statistics.
        """
        progress = Progress(
            plan=str(self._plan),
            seed=self._seed,
            step=self._steps,
            samples=self._steps * self._task.training.global_batch_size,
            loss_scale=self._scale.factor,
            good_steps=self._scale.good_steps,
        )
        save_checkpoint(folder, self._stage, self._optimizer, progress)

    def load(self, folder: Path) -> None:
        """Go on from the checkpoint in ``folder``, whatever plan saved it, all ranks at once."""
        progress = load_checkpoint(
            folder,
            self._stage,
            self._optimizer,
            plan=str(self._plan),
            replica=self._mesh.replica,
        )
        self._steps, self._scale.good_steps = progress.step, progress.good_steps
        if self._scale.moves:
            self._scale.factor = progress.loss_scale

    def statistics(self) -> dict[str, object]:
        """Return how training went since the last call, and what its time was made of.

        The loss is the mean since then, the gradient norm that of the last step; either is None
        where it is not finite. Alike on every rank.
        """
        loss, not_finite = self._losses.collect()
        norm = self._gradient_norm.item()
        samples, self._samples = self._samples, 0
        return spent_time(self._timer, samples=samples, plan=self._plan, mesh=self._mesh) | {
            "loss": loss,
            "losses_not_finite": not_finite,
            "gradient_norm": norm if math.isfinite(norm) else None,
        }

    def _build_executor(self) -> Executor:
        plan, part = self._plan, self._part
        if plan.pp == 1:
            return WholeModel(part.modules[0], self._loss, plan, self._timer)
        # Imported where it is needed: it costs seconds.
        from reference_impls.engine.pipeline import Pipeline

        return Pipeline(
            part.modules,
            self._loss,
            plan,
            self._mesh,
            self._timer,
            edges=part.edges,
            replica_batch=self._replica_batch,
        )

    def _loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss = self._chain.objective.loss(outputs, targets)
        self._losses.see(loss)
        return loss * self._scale.factor if self._scale.moves else loss

    def _compute(self, inputs: Tensor, targets: Tensor) -> None:
        """Leave the global batch's mean gradient in the parameters."""
        self._executor.step(inputs, targets)
        settle(self._part, plan=self._plan, mesh=self._mesh, timer=self._timer)

    def _update(self, *, measure: bool) -> None:
        """Let the optimiser take a step; measure the gradient's norm where it is asked for."""
        parameters, stages = self._parameters, self._mesh.pp_group
        if self._scale.moves:
            self._scale.unscale(parameters)
        if self._task.optimizer.clip_norm:
            clip = self._task.optimizer.clip_norm
            self._gradient_norm = clip_gradients(parameters, clip, stages=stages)
        elif self._scale.moves or measure:
            self._gradient_norm = gradient_norm(parameters, stages=stages)
        if not self._scale.moves or self._scale.admits(self._gradient_norm.item()):
            self._optimizer.step()
        self._optimizer.zero_grad()


def _whole(tensor: Tensor, device: torch.device) -> Tensor:
    if not is_spread(tensor):
        return tensor
    moved = tensor.to(device)  # it may be offloaded, and is gathered by the device's library
    assert is_spread(moved)
    return moved.full_tensor()
