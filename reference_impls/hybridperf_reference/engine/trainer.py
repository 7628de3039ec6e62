"""The training loop, common to all plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hybridperf.log import keys
from hybridperf_reference.engine.check import check_chain
from hybridperf_reference.engine.checkpoint import (
    TrainingProgress,
    load_checkpoint,
    save_checkpoint,
)
from hybridperf_reference.engine.compilation import disable_compiler
from hybridperf_reference.engine.data_parallel import DataParallel
from hybridperf_reference.engine.executor import Executor, Passes, StepByStep, WholeModel
from hybridperf_reference.engine.input import Input, SampleLengths, reading_role
from hybridperf_reference.engine.loss import BatchLoss
from hybridperf_reference.engine.norms import is_dtensor, local_parts, whole_tensor
from hybridperf_reference.engine.parallelize import (
    build_data_parallel,
    chain_units,
    parallelize,
    stage_slices,
)
from hybridperf_reference.engine.program_executor import ProgramExecutor
from hybridperf_reference.engine.rng import RngStreams
from hybridperf_reference.engine.timing import (
    StepTimer,
    gather_timeline,
    time_breakdown,
    timeline_steps,
)
from hybridperf_reference.engine.update import Update

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hybridperf.plan import ParallelPlan
    from hybridperf.run.access import EvaluationData, TrainingData
    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine.chain import Chain
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["Trainer"]

_EVALUATION_CHUNK = 64  # samples: activations of more exceed the CPU's cache


class Trainer:
    """Train ``chain`` for ``task`` under ``plan``, as one rank of it.

    Every rank must call the methods in the same order: most of them communicate.

    Raises:
        UserError: if the plan does not fit the chain.
    """

    def __init__(self, chain: Chain, task: Task, plan: ParallelPlan, mesh: Mesh, seed: int) -> None:
        if not plan.compile:
            disable_compiler()
        self._chain, self._task, self._plan, self._mesh, self._seed = chain, task, plan, mesh, seed
        probe = chain.probe()
        check_chain(chain, probe, task, plan)
        self._units = chain_units(chain, probe)
        self._cuts = stage_slices(plan, self._units)
        self._timer = StepTimer(mesh.device)
        if plan.delays_or_compresses:  # its executor averages gradients itself
            replicas = DataParallel(plan, mesh, self._timer)
        else:
            replicas = build_data_parallel(plan, mesh, self._timer)
        self._streams = RngStreams(seed, plan, mesh)
        self._part = parallelize(
            chain,
            self._cuts,
            probe,
            plan=plan,
            mesh=mesh,
            replicas=replicas,
            streams=self._streams,
        )
        self._stage = self._part.stage
        self._update = Update(self._part, task, plan, mesh)
        self._loss = BatchLoss(chain.objective, plan, mesh)
        self._replica_batch = task.training.global_batch_size // plan.dp
        self._replicas, self._executor = replicas, self._build_executor(replicas)
        lengths = None if task.data.filled else SampleLengths(plan)
        self._input = Input(chain.objective, mesh.device, reading_role(plan, mesh), lengths)
        self._steps = 0  # number of training steps
        self._samples = 0  # number trained on since the last call of `statistics`
        self._timeline_is_due = True  # the first statistics have it
        self._resumed: dict[
            str, object
        ] = {}  # versions of the weights in the last checkpoint loaded

    def partition_entry(self) -> tuple[str, list[dict[str, object]]]:
        """Return the log entry with the units and the forward FLOPs per sample of each stage.

        ``first_unit`` is the stage's number in a plan's ``cuts``.
        """
        stages = [
            {
                "first_unit": cut.start,
                "units": [unit.name for unit in self._units[cut]],
                "forward_flops_per_sample": sum(unit.forward_flops for unit in self._units[cut]),
            }
            for cut in self._cuts
        ]
        return keys.PARTITION, stages

    def warm_up(self) -> None:
        """Run two steps and an evaluation on synthetic samples, then restore the initial state.

        This allocates memory, connects process groups and compiles kernels before the clock starts.
        Subsequent training is identical to training without it: on processors bitwise.
        """
        parameters = [*self._stage.parameters()]
        with torch.no_grad():
            before = _host_copies(local_parts([*parameters, *self._stage.buffers()]))
        optimizer, scale = self._update.optimizer, self._update.scale
        assert not optimizer.state, "a warm-up precedes training"
        factor, good_steps = scale.factor, scale.good_steps
        device = self._mesh.device
        accelerators = [] if device.type == "cpu" else [device]
        with torch.random.fork_rng(accelerators, device_type=device.type):
            example = self._chain.example(self._replica_batch)
            inputs, targets = (part.to(device) for part in example)
            # Two: DDP rebuilds its buckets after the first step, in the order of gradients.
            self._executor.train(range(2), iter([(inputs, targets)] * 2))
            self._stage.eval()
            with torch.no_grad(), self._replicas.averaged_statistics():
                few = inputs[:_EVALUATION_CHUNK]
                self._predict(few, len(few))
        with torch.no_grad():
            after = local_parts([*parameters, *self._stage.buffers()])  # passes may replace buffers
            for part, value in zip(after, before, strict=True):
                part.copy_(value)
        self._replicas.after_change()
        optimizer.state.clear()
        scale.factor, scale.good_steps = factor, good_steps
        self._executor.restart()
        self._timer.collect()
        self._loss.collect()
        self._mesh.barrier()

    def train(self, data: TrainingData) -> None:
        """Train on the batches of a part of a block, except those before the loaded checkpoint."""
        self._stage.train()
        first = self._mesh.replica * self._replica_batch
        own = slice(first, first + self._replica_batch)
        steps = data.steps
        remaining = range(max(steps.start, self._steps), steps.stop)
        read = self._input.train(data, own, self._timer, self._steps)
        batches = self._timer.each("input", read)
        if remaining:
            ends_block = steps.stop == self._task.steps(data.block).stop
            if self._timeline_is_due and ends_block:  # the first one, for the next statistics
                self._timer.record(timeline_steps(remaining, self._plan))
            self._executor.train(remaining, ((inputs, targets) for _, inputs, targets in batches))
        self._steps = max(self._steps, steps.stop)
        self._samples += len(remaining) * self._task.training.global_batch_size

    def evaluate(self, data: EvaluationData) -> None:
        """Predict the evaluation samples; each replica predicts its share.

        Raises:
            CopiesDifferError: if the copies of a shared parameter are not equal.
        """
        objective, replicas = self._chain.objective, self._plan.dp
        self._part.shared.require_equal()
        self._stage.eval()
        predicted: list[tuple[slice, Tensor]] = []
        most = -(-len(data) // replicas)
        passes = -(-most // _EVALUATION_CHUNK)  # of the replica with the largest share
        with torch.no_grad(), self._replicas.averaged_statistics():
            chunks = data.chunks(self._mesh.replica, replicas, _EVALUATION_CHUNK)
            for chunk, inputs in self._input.evaluate(data.inputs, chunks):
                passes -= 1
                outputs = self._predict(inputs, chunk.stop - chunk.start)
                if outputs is not None and self._mesh.is_first_of_stage:
                    predicted.append((chunk, objective.predictions(outputs)))
            for _ in range(
                passes if self._plan.zero else 0
            ):  # other ranks gather this rank's shards
                self._executor.predict(self._chain.example(1)[0].to(self._mesh.device), 1)
        for chunk, classes in predicted:  # only now: copying waits for an accelerator
            data.predict(chunk, classes.cpu().numpy())

    def close(self) -> None:
        """End the worker processes that read samples."""
        self._input.close()

    def weights(self) -> dict[str, Tensor]:
        """Return this rank's parameters and buffers by global name, unsharded, on the CPU.

        Of a shared parameter one rank of the pipeline returns its copy. All ranks must call this.
        Sharded tensors are gathered one at a time, so that no device needs memory for the whole
        model.
        """
        buffers = self._stage.named_buffers()
        elsewhere = self._part.shared.held_elsewhere
        with self._replicas.averaged_statistics():
            weights = {
                name: _unshard(value, self._mesh.device).cpu()
                for name, value in self._stage.state_dict().items()
                if name not in elsewhere
            }
            # On the CPU these are the buffers, whose values replicas restore.
            return weights | {n: weights[n].clone() for n, _ in buffers if n in weights}

    def save(self, folder: Path) -> None:
        """Save a checkpoint into ``folder``; all ranks call this."""
        tensors, scales = self._executor.state()
        progress = TrainingProgress(
            plan=str(self._plan),
            seed=self._seed,
            step=self._steps,
            samples=self._steps * self._task.training.global_batch_size,
            loss_scale=self._update.scale.factor,
            good_steps=self._update.scale.good_steps,
            version_scales={str(version): scale for version, scale in scales.items()},
        )
        tensors |= {name: buffer.clone() for name, buffer in self._own_statistics().items()}
        with self._replicas.averaged_statistics():
            save_checkpoint(folder, self._stage, self._update.optimizer, progress, tensors)

    def load(self, folder: Path) -> None:
        """Resume from the checkpoint in ``folder``, saved under any plan; all ranks call this.

        The next statistics list the restored and the dropped versions of the weights.

        Raises:
            CheckpointError: if the checkpoint is damaged or of another model.
        """
        own = self._own_statistics()
        progress, tensors = load_checkpoint(
            folder,
            self._stage,
            self._update.optimizer,
            lambda progress: (
                self._executor.expected_state(progress.step)
                | (
                    {n: b.clone() for n, b in own.items()}
                    if progress.plan == str(self._plan)
                    else {}
                )
            ),
        )
        for name, buffer in own.items():
            buffer.copy_(tensors.get(name, buffer))
        self._steps, self._update.scale.good_steps = progress.step, progress.good_steps
        if self._update.scale.is_dynamic:
            self._update.scale.factor = progress.loss_scale
        saved = {int(version): scale for version, scale in progress.version_scales.items()}
        restored = self._executor.resume(progress.step, tensors, saved)
        if saved or self._plan.staleness:
            self._resumed = {
                "plan": progress.plan,
                "versions_restored": restored,
                "versions_dropped": sorted(saved.keys() - set(restored)),
            }

    def statistics(self) -> dict[str, object]:
        """Return training statistics since the last call, identical on ranks of one pipeline.

        The time breakdown, the mean loss, the number of non-finite losses, and the gradient norm of
        the last step. Loss and norm are None if they are not finite. Samples of different lengths
        add their tokens, delayed or compressed plans the bytes sent by all ranks and their
        uncompressed size, and the first statistics a timeline of this rank's pipeline; see
        docs/log.md.
        """
        loss, not_finite = self._loss.collect()
        samples, self._samples = self._samples, 0
        further: dict[str, object] = {}
        if own := self._executor.bytes_sent():
            sums = self._mesh.sum(torch.tensor([*own.values()], device=self._mesh.device)).tolist()
            further["sent"] = dict(zip(own, sums, strict=True))
        if self._timeline_is_due:
            self._timeline_is_due = False
            further["timeline"] = gather_timeline(self._timer, self._plan, self._mesh)
            self._timer.record(range(0))
        if self._resumed:
            further["resumed"], self._resumed = self._resumed, {}
        return (
            time_breakdown(self._timer, samples=samples, plan=self._plan, mesh=self._mesh)
            | {
                "loss": loss,
                "losses_not_finite": not_finite,
                "gradient_norm": self._update.gradient_norm(),
            }
            | self._input.statistics()
            | further
        )

    def _build_executor(self, replicas: DataParallel) -> Executor:
        plan, part, batch = self._plan, self._part, self._replica_batch
        if plan.delays_or_compresses:
            return ProgramExecutor(
                part,
                self._loss,
                plan,
                self._mesh,
                self._timer,
                self._update,
                self._streams,
                replica_batch=batch,
                seed=self._seed,
            )
        passes: Passes
        if plan.pp == 1:
            passes = WholeModel(part.modules[0], self._loss, plan, replicas, self._timer)
        else:
            # Imported lazily: torch.distributed.pipelining takes seconds.
            from hybridperf_reference.engine.pipeline import Pipeline

            passes = Pipeline(
                part, self._loss, plan, self._mesh, replicas, self._timer, replica_batch=batch
            )
        return StepByStep(
            passes, part, plan, self._mesh, replicas, self._timer, self._update, self._streams
        )

    def _predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return `Executor.predict` of so many ``samples``; the last one fills parts of a batch."""
        more = -samples % self._plan.batch_parts
        if more and inputs is not None:
            inputs = torch.cat([inputs, inputs[-1:].expand(more, *inputs.shape[1:])])
        outputs = self._executor.predict(inputs, samples + more)
        return None if outputs is None else outputs[:samples]

    def _own_statistics(self) -> dict[str, Tensor]:
        """Return running statistics [...] of this replica, by name unique to this rank."""
        if not self._mesh.replica_groups():
            return {}
        own = f"replica.{self._mesh.replica}.tensor.{self._mesh.tp_rank}"
        buffers = self._stage.named_buffers()
        return {f"{own}.{name}": each for name, each in buffers if each.is_floating_point()}


def _host_copies(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return copies of ``tensors`` [...] in the host's memory; the device may lack room for two."""
    return [tensor.to("cpu", copy=True) for tensor in tensors]


def _unshard(tensor: Tensor, device: torch.device) -> Tensor:
    """Return ``tensor`` unsharded; a collective over the ranks that share it."""
    if not is_dtensor(tensor):
        return tensor
    return whole_tensor(tensor.to(device))  # from the CPU if offloaded: the device's group gathers
