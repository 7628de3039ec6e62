"""Executors, which train a rank's stages in a block of steps: interface, and step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

from hybridperf_reference.engine.data_parallel import unwrap
from hybridperf_reference.engine.gradients import add_zero_gradients
from hybridperf_reference.engine.parallelize import finalize_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.data_parallel import DataParallel
    from hybridperf_reference.engine.loss import BatchLoss
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.parallelize import RankStages
    from hybridperf_reference.engine.rng import RngStreams
    from hybridperf_reference.engine.timing import StepTimer
    from hybridperf_reference.engine.update import Update

__all__ = ["Executor", "Passes", "StagePredictor", "StepByStep", "WholeModel"]


class Executor(Protocol):
    """Trains the stages of this rank block by block, and predicts with them."""

    def train(self, steps: range, batches: Iterator[tuple[Tensor | None, Tensor | None]]) -> None:
        """Train on ``batches``, one for each of ``steps``: this replica's inputs and targets.

        Only the first stage needs inputs [batch, ...], and only the last one targets [batch, ...].
        ``steps`` follow the steps of the last call, or start at the step of `resume`.

        Afterwards the parameters have the updates of all steps.
        """

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs [batch, ...] on the rank of the last stage, None on other ranks.

        ``inputs`` [batch, ...] have ``samples`` samples; ranks without the first stage may have
        None.
        """

    def restart(self) -> None:
        """Forget all steps, after a warm-up: the present weights are the weights of step 0."""

    def state(self) -> tuple[dict[str, Tensor], dict[int, float]]:
        """Return state of a checkpoint besides weights: tensors by name, and loss scales.

        Loss scales are by older version of the weights.
        """

    def expected_state(self, step: int) -> dict[str, Tensor]:
        """Return tensors in the shapes of `state` before ``step``, to load into."""

    def resume(
        self, step: int, state: Mapping[str, Tensor], factors: Mapping[int, float]
    ) -> list[int]:
        """Resume at ``step`` from `state`, and return the older versions restored."""

    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes sent by this rank since the last call, and their uncompressed size.

        Empty if the executor does not count them.
        """


class Passes(Protocol):
    """The forward and backward passes of a step, in any order."""

    def compute_gradients(
        self, step: int, inputs: Tensor | None, targets: Tensor | None, scale: float
    ) -> None:
        """Compute gradients for this replica's ``inputs`` and ``targets``, both [batch, ...].

        Ranks without the first or the last stage may have None. ``scale`` multiplies the loss.

        Afterwards ``grad`` holds the gradient of the mean loss over the global batch, averaged over
        replicas, unless the strategy averages it after the backward pass.
        """

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs [batch, ...], as `Executor.predict`."""


class StepByStep:
    """Train synchronously: each step's gradients are applied before the next step begins."""

    def __init__(
        self,
        passes: Passes,
        part: RankStages,
        plan: ParallelPlan,
        mesh: Mesh,
        replicas: DataParallel,
        timer: StepTimer,
        update: Update,
        streams: RngStreams,
    ) -> None:
        self._passes, self._part, self._plan, self._mesh = passes, part, plan, mesh
        self._first = plan.stages_of(mesh.pp_rank)[0]
        self._replicas, self._timer = replicas, timer
        self._update, self._streams = update, streams

    def train(self, steps: range, batches: Iterator[tuple[Tensor | None, Tensor | None]]) -> None:
        """Train on ``batches`` of inputs and targets [batch, ...], one for each of ``steps``."""
        for step, (inputs, targets) in zip(steps, batches, strict=True):
            factor = self._update.scale.factor
            self._streams.begin_step(step)
            self._passes.compute_gradients(step, inputs, targets, factor)
            with self._timer.part("compute"):
                add_zero_gradients(self._update.parameters)
                finalize_gradients(self._part, plan=self._plan, mesh=self._mesh)
            self._replicas.after_backward()
            with self._timer.action("update", step, 0, stage=self._first, part="optimizer"):
                self._replicas.before_step()
                self._update.apply(step, factor=factor, measure=step == steps[-1])

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs for ``inputs``, both [batch, ...], on the last stage's rank, else None."""
        return self._passes.predict(inputs, samples)

    def restart(self) -> None:
        """Do nothing: steps leave no state."""

    def state(self) -> tuple[dict[str, Tensor], dict[int, float]]:
        """Return nothing: there are no older versions of the weights."""
        return {}, {}

    def expected_state(self, step: int) -> dict[str, Tensor]:  # noqa: ARG002 - the interface's
        """Return nothing, as `state`."""
        return {}

    def resume(
        self,
        step: int,  # noqa: ARG002 - the interface's, as below
        state: Mapping[str, Tensor],  # noqa: ARG002
        factors: Mapping[int, float],  # noqa: ARG002
    ) -> list[int]:
        """Restore no older versions."""
        return []

    def bytes_sent(self) -> dict[str, int]:
        """Return nothing: torch does not count them."""
        return {}


class WholeModel:
    """Run the whole model on this rank."""

    def __init__(
        self,
        module: nn.Module,
        loss: BatchLoss,
        plan: ParallelPlan,
        replicas: DataParallel,
        timer: StepTimer,
    ) -> None:
        self._module, self._loss, self._plan = module, loss, plan
        self._replicas, self._timer = replicas, timer
        self._timed_backward = replicas.timed_backward(module)

    def compute_gradients(
        self, step: int, inputs: Tensor | None, targets: Tensor | None, scale: float
    ) -> None:
        """Accumulate gradients over micro-batches of ``inputs`` and ``targets`` [batch, ...]."""
        assert inputs is not None, "this rank holds the first stage"
        assert targets is not None, "this rank holds the last stage"
        with self._timer.part("waiting"):  # replicas may all-reduce their numbers of targets
            self._loss.begin_step(targets, scale)
        count = self._plan.microbatches
        pairs = zip(inputs.chunk(count), targets.chunk(count), strict=True)
        for number, (some_inputs, some_targets) in enumerate(pairs):
            with self._replicas.micro_batch(last=number == count - 1):
                with self._timer.action("forward", step, number):
                    loss = self._loss(self._module(some_inputs), some_targets)
                with self._timer.action("backward", step, number), self._timed_backward():
                    loss.backward()

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return the outputs [batch, ...] for ``inputs`` [batch, ...]."""
        del samples  # as many as inputs
        assert inputs is not None, "this rank holds the first stage"
        outputs: Tensor = unwrap(self._module)(inputs)
        return outputs


class StagePredictor:
    """Pass samples through the stages of a pipeline, one stage after the other."""

    def __init__(self, part: RankStages, plan: ParallelPlan, mesh: Mesh) -> None:
        self._mesh = mesh
        self._edges = [*zip(part.edges, part.edge_ranks, strict=True)]
        numbers = plan.stages_of(mesh.pp_rank)
        self._modules = dict(zip(numbers, map(unwrap, part.modules), strict=True))
        self._holders = {s: rank for rank in range(plan.pp) for s in plan.stages_of(rank)}
        self._last = plan.pipeline_stages - 1

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs for ``inputs``, both [batch, ...], on the last stage's rank, else None.

        ``inputs`` have ``samples`` samples; only the rank of the first stage needs them.
        """
        values, own, group = inputs, self._mesh.pp_rank, self._mesh.pp_group
        for number, module in self._modules.items():
            edge, ranks = self._edges[number]
            if number > 0 and self._holders[number - 1] != own:
                shape = (samples // ranks, *edge.shape)
                values = torch.empty(shape, dtype=edge.dtype, device=self._mesh.device)
                dist.recv(values, group=group, group_src=self._holders[number - 1])
            values = module(values)
            if number < self._last and self._holders[number + 1] != own:
                assert values is not None
                dist.send(values, group=group, group_dst=self._holders[number + 1])
        return values if self._last in self._modules else None
