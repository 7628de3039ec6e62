"""Execute the program of a block on this rank: delayed and compressed plans."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import (
    Tensor,
    _foreach_copy_,  # one kernel for many tensors has no public name
)

from hybridperf.plan.program import max_pending_sends, rank_program
from hybridperf.plan.schedules import Action, ActionKind
from hybridperf_reference.engine.batchnorm import commit_statistics
from hybridperf_reference.engine.executor import StagePredictor
from hybridperf_reference.engine.gradient_reducer import GradientReducer
from hybridperf_reference.engine.link import LINK_CODECS, Link, LinkKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.loss import BatchLoss
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.parallelize import RankStages
    from hybridperf_reference.engine.rng import RngStreams
    from hybridperf_reference.engine.timing import StepTimer
    from hybridperf_reference.engine.update import Update

__all__ = ["ProgramExecutor", "WeightVersions"]


class _InFlight(NamedTuple):
    """A micro-batch between its forward and its backward pass."""

    inputs: Tensor
    outputs: Tensor


class ProgramExecutor:
    """Execute the program of this rank's stage, block by block.

    `rank_program` gives the actions, with the version of the weights of each. Passes of several
    steps may be in flight, as may all-reduces of earlier steps.
    """

    def __init__(
        self,
        part: RankStages,
        loss: BatchLoss,
        plan: ParallelPlan,
        mesh: Mesh,
        timer: StepTimer,
        update: Update,
        streams: RngStreams,
        *,
        replica_batch: int,
        seed: int,
    ) -> None:
        (self._module,) = part.modules
        self._reducer: GradientReducer
        self._part, self._loss, self._plan, self._mesh = part, loss, plan, mesh
        self._seed = seed
        self._timer, self._update, self._streams = timer, update, streams
        self._predictor = StagePredictor(part, plan, mesh)
        has_replicas = mesh.group("replicate") is not None
        self.versions = WeightVersions(
            part.stage, (lambda number: self._reducer.ready(number)) if has_replicas else None
        )
        self._is_first, self._is_last = mesh.pp_rank == 0, mesh.pp_rank == plan.pp - 1
        size = replica_batch // plan.microbatches
        self._links = self._build_links(size)
        self._own = (
            f"stage.{mesh.pp_rank}.replica.{mesh.replica}"  # prefix of state that no other rank has
        )
        self._factors: dict[int, float] = {}  # loss scale, by version
        self._step_factors: dict[int, float] = {}  # loss scale, by step with pending gradients
        self._in_flight: dict[tuple[int, int], _InFlight] = {}
        self._received: dict[ActionKind, Tensor] = {}
        self._outgoing: dict[ActionKind, Tensor] = {}
        self._do: Mapping[ActionKind, Callable[[Action], None]] = {
            ActionKind.RECEIVE_ACTIVATION: self._receive,
            ActionKind.FORWARD: self._forward,
            ActionKind.SEND_ACTIVATION: self._send,
            ActionKind.RECEIVE_GRADIENT: self._receive,
            ActionKind.BACKWARD: self._backward,
            ActionKind.SEND_GRADIENT: self._send,
            ActionKind.REDUCE: lambda action: self._reducer.end(action.step),
            ActionKind.UPDATE: self._apply,
            ActionKind.PUBLISH: self._publish,
            ActionKind.RETIRE: self._retire,
        }
        self.restart()

    def restart(self) -> None:
        """Forget all steps, after a warm-up: the present weights are version 0."""
        self.versions.restore(0, {})
        self._factors = {0: self._update.scale.factor}
        self._reducer = GradientReducer(
            self.versions.parameters, self._plan, self._mesh, self._seed
        )
        self._counted = self._bytes()

    def state(self) -> tuple[dict[str, Tensor], dict[int, float]]:
        """Return state of a checkpoint besides weights: tensors by name, and loss scales.

        Tensors are the older versions that later steps need, and this replica's residues of
        compression; scales are by version. Between blocks no update is pending.
        """
        older = self.versions.alive()[:-1]
        tensors = {
            _version_name(version, name): weight.detach()
            for version in older
            for name, weight in zip(
                self.versions.names, self.versions.weights(version), strict=True
            )
        }
        tensors |= {f"{self._own}.{name}": v for name, v in self._reducer.state().items()}
        return tensors, {version: self._factors[version] for version in older}

    def expected_state(self, step: int) -> dict[str, Tensor]:
        """Return tensors in the shapes of `state` before ``step``, to load into."""
        own = {f"{self._own}.{name}": v.clone() for name, v in self._reducer.state().items()}
        return own | {
            _version_name(version, name): torch.empty_like(parameter.data)
            for version in range(max(0, step - self._plan.staleness), step)
            for name, parameter in zip(self.versions.names, self.versions.parameters, strict=True)
        }

    def resume(
        self, step: int, state: Mapping[str, Tensor], factors: Mapping[int, float]
    ) -> list[int]:
        """Resume at ``step`` from `state`, and return the older versions restored.

        The first steps after a checkpoint with fewer versions compute with the oldest version.
        """
        start = f"{self._own}."
        kept = {n.removeprefix(start): v for n, v in state.items() if n.startswith(start)}
        if kept.keys() == self._reducer.state().keys():
            self._reducer.load_state(kept)
        older = {
            version: {name: state[_version_name(version, name)] for name in self.versions.names}
            for version in sorted(factors)
            if all(_version_name(version, name) in state for name in self.versions.names)
        }
        self.versions.restore(step, older)
        self._factors = {version: factors[version] for version in older}
        self._factors[step] = self._update.scale.factor
        return list(older)

    def train(self, steps: range, batches: Iterator[tuple[Tensor | None, Tensor | None]]) -> None:
        """Train on ``batches``, one for each of ``steps``: this replica's inputs and targets.

        Only the first stage needs inputs [batch, ...], and only the last one targets [batch, ...].
        """
        newest = max(self.versions.alive())
        assert steps.start == newest, f"expected steps from {newest} on, found {steps}"
        self._batches, self._last_step = batches, steps[-1]
        microbatches = len(steps) * self._plan.microbatches
        self._expected = Counter(dict.fromkeys(self._links, microbatches))
        oldest = min(self.versions.alive())
        for action in rank_program(self._plan, self._mesh.pp_rank, steps, oldest=oldest):
            self._do[action.kind](action)
        with self._timer.part("waiting"):
            for link in self._links.values():
                link.drain()
        self.versions.uninstall()

    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes sent by this rank since the last call, and their uncompressed size."""
        before, self._counted = self._counted, self._bytes()
        return {name: count - before[name] for name, count in self._counted.items()}

    def predict(self, inputs: Tensor | None, samples: int) -> Tensor | None:
        """Return outputs [batch, ...] of the newest weights, as `Executor.predict`."""
        return self._predictor.predict(inputs, samples)

    def _build_links(self, size: int) -> dict[ActionKind, Link]:
        """Return this stage's links by action, for micro-batches of ``size`` samples."""
        plan, mesh, stage = self._plan, self._mesh, self._mesh.pp_rank
        edges, own = self._part.edges, slice(stage, stage + 2)
        before, after = ((size, *edge.shape) for edge in edges[own])
        before_dtype, after_dtype = (edge.dtype for edge in edges[own])
        ends = {}
        if not self._is_first:
            forth, back = mesh.link_group(stage - 1, stage), mesh.link_group(stage, stage - 1)
            ends[ActionKind.RECEIVE_ACTIVATION] = (forth, before, before_dtype)
            ends[ActionKind.SEND_GRADIENT] = (back, before, before_dtype)
        if not self._is_last:
            forth, back = mesh.link_group(stage, stage + 1), mesh.link_group(stage + 1, stage)
            ends[ActionKind.SEND_ACTIVATION] = (forth, after, after_dtype)
            ends[ActionKind.RECEIVE_GRADIENT] = (back, after, after_dtype)
        return {
            kind: Link(
                *end,
                mesh.device,
                codec=LINK_CODECS[plan.links],
                max_pending_sends=max_pending_sends(plan.pp),
            )
            for kind, end in ends.items()
        }

    def _bytes(self) -> dict[str, int]:
        """Return all bytes sent by this rank, and their uncompressed size."""
        links = self._links.values()
        return {
            "gradient_bytes": self._reducer.sent_bytes,
            "gradient_bytes_uncompressed": self._reducer.uncompressed_bytes,
            "link_bytes": sum(link.sent_bytes for link in links),
            "link_bytes_uncompressed": sum(link.uncompressed_bytes for link in links),
        }

    def _receive(self, action: Action) -> None:
        self._expected[action.kind] -= 1
        with self._timer.part("waiting"):
            another = self._expected[action.kind] > 0
            self._received[action.kind] = self._links[action.kind].receive(another=another)

    def _send(self, action: Action) -> None:
        back, stage = action.kind is ActionKind.SEND_GRADIENT, self._mesh.pp_rank
        number = self._mesh.replica * self._plan.microbatches + action.microbatch
        boundary = stage if back else stage + 1
        key = LinkKey(self._seed, action.step, number, boundary, gradient=back)
        with self._timer.part("waiting"):
            self._links[action.kind].send(self._outgoing.pop(action.kind), key)

    def _forward(self, action: Action) -> None:
        step, number, version = action.step, action.microbatch, action.version
        if number == 0:
            self._begin_step(step, version)
        if self._is_first:
            inputs = self._inputs[number]
        else:
            inputs = self._received.pop(ActionKind.RECEIVE_ACTIVATION).requires_grad_()
        self.versions.install(version)
        with self._timer.action("forward", step, number, stage=self._mesh.pp_rank):
            outputs: Tensor = self._module(inputs)
            if self._is_last:
                outputs = self._loss(outputs, self._targets[number])
            else:
                self._outgoing[ActionKind.SEND_ACTIVATION] = outputs.detach()
            if self._plan.bn == "deferred" and number == self._plan.microbatches - 1:
                commit_statistics(self._part.stage)
        self._in_flight[step, number] = _InFlight(inputs, outputs)

    def _begin_step(self, step: int, version: int) -> None:
        """Read the batch of ``step`` before its first forward pass."""
        inputs, targets = next(self._batches)
        count = self._plan.microbatches
        self._streams.begin_step(step)
        factor = self._step_factors[step] = self._factors[version]
        if self._is_first:
            assert inputs is not None, "this rank holds the first stage"
            self._inputs = inputs.chunk(count)
        if self._is_last:
            assert targets is not None, "this rank holds the last stage"
            self._loss.begin_step(targets, factor)
            self._targets = targets.chunk(count)

    def _backward(self, action: Action) -> None:
        inputs, outputs = self._in_flight.pop((action.step, action.microbatch))
        gradient = None
        if not self._is_last:
            gradient = self._received.pop(ActionKind.RECEIVE_GRADIENT)
        self.versions.install(action.version)  # recomputation reads the weights again
        if action.microbatch == self._plan.microbatches - 1:
            self._reducer.begin(action.step, self.versions.weights(action.version), outputs)
        with self._timer.action(
            "backward", action.step, action.microbatch, stage=self._mesh.pp_rank
        ):
            if outputs.requires_grad:  # not if all units so far are frozen
                torch.autograd.backward(outputs, gradient)
        if not self._is_first:
            sent = torch.zeros_like(inputs) if inputs.grad is None else inputs.grad
            self._outgoing[ActionKind.SEND_GRADIENT] = sent.contiguous()

    def _apply(self, action: Action) -> None:
        """Wait for the averaged gradients of a step, and apply them."""
        with self._timer.part("compute"), self._timer.part("exposed_communication"):
            averages = self._reducer.take(action.step)
        with self._timer.action(
            "update", action.step, 0, stage=self._mesh.pp_rank, part="optimizer"
        ):
            for parameter, average in zip(self.versions.parameters, averages, strict=True):
                parameter.grad = average
            self.versions.before_update()
            factor, last = self._step_factors.pop(action.step), action.step == self._last_step
            if not self._update.apply(action.step, factor=factor, measure=last):
                self._reducer.discard()

    def _publish(self, action: Action) -> None:
        self.versions.publish(action.version)
        self._factors[action.version] = self._update.scale.factor

    def _retire(self, action: Action) -> None:
        self.versions.retire(action.version)
        del self._factors[action.version]


def _version_name(version: int, parameter: str) -> str:
    return f"version.{version}.{parameter}"


class WeightVersions:
    """The versions of the trainable parameters of ``stage`` that pending passes need.

    A version is published without a copy: its tensors share the storage of the parameters. The next
    update writes to other storage only while the version is needed, so with staleness d there are
    at most d + 1 copies of the weights. Buffers have no versions.

    ``on_gradient`` is called with a parameter's index when a backward pass has accumulated the
    gradient of one of its versions.
    """

    def __init__(self, stage: nn.Module, on_gradient: Callable[[int], None] | None) -> None:
        named = {name: p for name, p in stage.named_parameters() if p.requires_grad}
        self.names, self.parameters = tuple(named), tuple(named.values())
        numbers = {id(parameter): number for number, parameter in enumerate(self.parameters)}
        self._places = [
            (module._parameters, name, numbers[id(parameter)])  # noqa: SLF001 - swapped, not copied
            for module in stage.modules()
            for name, parameter in module._parameters.items()  # noqa: SLF001
            if id(parameter) in numbers
        ]
        self._on_gradient = on_gradient
        # A copy of the weights is a list of leaves of the graph; the parameters share the storage
        # of one copy at a time. A leaf has its own version counter.
        self._alive: dict[int, list[Tensor]] = {}
        self._unused: list[list[Tensor]] = []  # of retired versions
        self._newest, self._current = 0, list[Tensor]()  # the version and its copy
        self._installed: object = self.parameters

    def alive(self) -> list[int]:
        """Return the versions that are not retired, oldest first."""
        return sorted(self._alive)

    def weights(self, version: int) -> list[Tensor]:
        """Return the weights [...] of ``version`` by parameter; gradients accumulate in them."""
        return self._alive[version]

    def publish(self, version: int) -> None:
        """Make the parameters' present values available as ``version``."""
        self._newest = version
        self._alive[version] = self._current

    def restore(self, newest: int, older: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Discard all versions; publish the parameters as ``newest``, and ``older`` by name."""
        self._alive.clear()
        self._unused.clear()
        for version, weights in older.items():
            self._alive[version] = self._leaves([weights[name].clone() for name in self.names])
        self._current = self._leaves([parameter.data for parameter in self.parameters])
        self.publish(newest)

    def retire(self, version: int) -> None:
        """Discard ``version``, and keep its storage for a later update."""
        weights = self._alive.pop(version)
        if version != self._newest:
            self._unused.append(weights)

    def before_update(self) -> None:
        """Give the parameters storage that no version shares, with the same values."""
        if self._newest not in self._alive:
            return
        present = [parameter.data for parameter in self.parameters]
        if not self._unused:
            self._unused.append(self._leaves([torch.empty_like(each) for each in present]))
        self._current = self._unused.pop()
        storage = [leaf.data for leaf in self._current]
        if storage:
            _foreach_copy_(storage, present)
        for parameter, fresh in zip(self.parameters, storage, strict=True):
            parameter.data = fresh

    def install(self, version: int) -> None:
        """Make the modules compute with ``version`` until the next call."""
        self._install(self._alive[version])

    def uninstall(self) -> None:
        """Make the modules compute with their parameters, the newest values."""
        self._install(self.parameters)

    def _install(self, weights: list[Tensor] | tuple[nn.Parameter, ...]) -> None:
        if weights is not self._installed:
            for registry, name, number in self._places:
                registry[name] = weights[number]  # type: ignore[assignment]  # as functional_call does
            self._installed = weights

    def _leaves(self, weights: list[Tensor]) -> list[Tensor]:
        """Return ``weights`` [...] as leaves of the graph."""
        for number, weight in enumerate(weights):
            weight.requires_grad_()
            if self._on_gradient is not None:
                weight.register_post_accumulate_grad_hook(partial(self._ready, number))
        return weights

    def _ready(self, number: int, _: Tensor) -> None:
        assert self._on_gradient is not None
        self._on_gradient(number)
