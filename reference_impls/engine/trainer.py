"""Train a chain under a plan: one loop for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from reference_impls.engine.execute import Executor, WholeModel
from reference_impls.engine.optim import build_optimizer, learning_rate
from reference_impls.engine.partition import forward_flops, minimax_partition
from reference_impls.engine.replicate import apply_replication, average_buffers
from reference_impls.engine.stage import Stage
from reference_impls.engine.timing import PARTS, StepTimer
from suite.logs import keys

if TYPE_CHECKING:
    from reference_impls.engine.chain import Chain
    from reference_impls.engine.mesh import Mesh
    from suite.plan import ParallelPlan
    from suite.runs.access import Batch, EvaluationData, TrainingData
    from suite.tasks.task import Task

__all__ = ["Trainer"]

_EVALUATION_CHUNK = 64  # samples: activations of more no longer fit the processor's cache


class Trainer:
    """Train ``chain`` for ``task`` under ``plan``: one rank's part of it."""

    def __init__(self, chain: Chain, task: Task, plan: ParallelPlan, mesh: Mesh, seed: int) -> None:
        self._chain, self._task, self._plan, self._mesh, self._seed = chain, task, plan, mesh, seed
        self._flops = forward_flops(chain)
        self._cuts = minimax_partition(self._flops, plan.pp)
        self._shapes = chain.boundary_shapes()  # asked before any unit moves to the device
        self._stage = Stage(chain.units[self._cuts[mesh.stage]]).to(mesh.device)
        self._timer = StepTimer(mesh.device)
        self._replica_batch = task.training.global_batch_size // plan.dp
        self._executor = self._build_executor()
        self._optimizer = build_optimizer(self._stage, task.optimizer)
        self._drawn_epoch, self._numbers = 0, torch.empty(0)

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
        inputs = self._chain.example(self._replica_batch).to(self._mesh.device)
        labels = torch.zeros(self._replica_batch, dtype=torch.int64, device=self._mesh.device)
        for _ in range(2):  # the second step runs in the buckets that the first one orders
            self._executor.step(inputs, labels)
            self._optimizer.zero_grad()
        self._stage.eval()
        with torch.no_grad():
            self._executor.predict(inputs[:_EVALUATION_CHUNK])
        self._stage.load_state_dict(before)
        self._timer.collect()
        self._mesh.barrier()

    def train(self, data: TrainingData) -> None:
        """Train through the batches of a block."""
        self._stage.train()
        for batch in data.batches():
            with self._timer.part("input"):
                inputs, labels = self._share(data, batch)
                rate = learning_rate(batch.step, self._task.steps_per_epoch, self._task.optimizer)
                for group in self._optimizer.param_groups:
                    group["lr"] = rate
            with self._timer.part("step"):
                self._executor.step(inputs, labels)
            with self._timer.part("optimizer"):
                self._optimizer.step()
                self._optimizer.zero_grad()

    def evaluate(self, data: EvaluationData) -> float:
        """Return the share of the held-out samples whose class is predicted right.

        Each replica takes a share of the samples; the answer is the same on every rank.
        """
        average_buffers(self._stage, mesh=self._mesh)
        self._stage.eval()
        correct = torch.zeros(1, dtype=torch.int64, device=self._mesh.device)
        with torch.no_grad():
            for chunk in data.chunks(self._mesh.replica, self._plan.dp, _EVALUATION_CHUNK):
                images = torch.from_numpy(data.samples.images[chunk]).to(self._mesh.device)
                logits = self._executor.predict(self._chain.prepare(images))
                if logits is not None:
                    labels = torch.from_numpy(data.samples.labels[chunk]).to(self._mesh.device)
                    correct += (logits.argmax(dim=1) == labels).sum()
        return self._mesh.sum(correct).item() / len(data)

    def weights(self) -> dict[str, Tensor]:
        """Return this stage's parameters and buffers by global names."""
        return dict(self._stage.state_dict())

    def statistics(self) -> dict[str, object]:
        """Return what the time since the last call was made of, on every rank."""
        own = self._timer.collect()
        # On the device: its collectives library may know no other.
        seconds = torch.tensor([own[part] for part in PARTS], device=self._mesh.device)
        ranks = self._mesh.gather(seconds)
        stages, waiting, exposed, total = [], 0.0, 0.0, 0.0
        for rank, values in enumerate(ranks):
            part = dict(zip(PARTS, values.tolist(), strict=True))
            # Timed inside the backward pass, so part of what was taken for computation.
            part["compute"] -= part["exposed_communication"]
            wait = part.pop("step") - part["compute"] - part["exposed_communication"]
            replica, stage = divmod(rank, self._plan.pp)
            waiting += wait
            exposed += part["exposed_communication"]
            total += wait + sum(part.values())
            parts = {f"{name}_s": round(value, 6) for name, value in part.items()}
            stages.append({"replica": replica, "stage": stage, "waiting_s": round(wait, 6)} | parts)
        return {
            "stages": stages,
            "bubble": round(waiting / total, 6),
            "exposed_communication": round(exposed / total, 6),
        }

    def _build_executor(self) -> Executor:
        smoothing, plan = self._task.training.label_smoothing, self._plan
        loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
        module = apply_replication(self._stage, mesh=self._mesh)
        if plan.pp == 1:
            return WholeModel(module, loss, plan.microbatches, self._timer)
        # Imported where it is needed: it costs seconds.
        from reference_impls.engine.pipeline import Pipeline

        cut = self._cuts[self._mesh.stage]
        return Pipeline(
            module,
            loss,
            plan,
            self._mesh,
            self._timer,
            boundaries=(self._shapes[cut.start], self._shapes[cut.stop]),
            replica_batch=self._replica_batch,
            evaluation_chunk=_EVALUATION_CHUNK,
        )

    def _share(self, data: TrainingData, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return this replica's samples of ``batch``, augmented, and their labels."""
        if batch.epoch != self._drawn_epoch:
            drawn = self._chain.augment.draw(self._seed, batch.epoch, len(data.samples))
            self._drawn_epoch, self._numbers = batch.epoch, torch.from_numpy(drawn)
        first = self._mesh.replica * self._replica_batch
        own = batch.indices[first : first + self._replica_batch]
        device = self._mesh.device
        images = torch.from_numpy(data.samples.images[own]).to(device)
        numbers = self._numbers[torch.from_numpy(own)].to(device)
        inputs = self._chain.augment.apply(self._chain.prepare(images), numbers)
        return inputs, torch.from_numpy(data.samples.labels[own]).to(device)
