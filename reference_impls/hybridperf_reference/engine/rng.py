"""Random number streams of training, as used by dropout, seeded for each pass through a unit.

Every pass of a micro-batch through a unit seeds torch's generators from the run's seed, the step,
the micro-batch and the unit. So the numbers do not depend on the pipeline's partition or schedule,
recomputation repeats them, and training resumes at any step without saved generator states.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from numpy import uint64
from numpy.random import SeedSequence
from torch.utils._python_dispatch import TorchDispatchMode  # has no public name

from hybridperf_reference.engine.chain import trial_pass
from hybridperf_reference.engine.gradients import unused_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor, nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.mesh import Mesh

__all__ = ["RngStreams", "draws_random_numbers"]

_Pass = tuple[int, int, int]  # step, micro-batch in the global batch, unit


class RngStreams:
    """The random number streams of this rank's units in training.

    Ranks of one tp group draw equal numbers for replicated activations, and different numbers for
    activations split between them: features from a column-parallel to the next row-parallel layer,
    and tokens under ``sp``. Ranks of one cp group draw different numbers in units whose tokens are
    split, and equal numbers in all others.
    """

    def __init__(self, seed: int, plan: ParallelPlan, mesh: Mesh) -> None:
        self._seed, self._tp_rank = seed, mesh.tp_rank
        self._sequence_parallel = plan.sp
        self._context_part = [1 + mesh.cp_rank] if plan.cp > 1 else []  # of the tokens
        self._generators: list[Any] = [torch.default_generator]
        if mesh.device.type != "cpu":
            self._generators.append(torch.get_device_module(mesh.device))
        self._first = mesh.replica * plan.microbatches  # the first micro-batch of this replica
        self._step = 0
        self._passes: dict[int, int] = {}  # by unit, in this step
        self._current: _Pass = (0, 0, 0)
        self._split, self._regions = False, 0
        self._has_part = False  # whether the unit holds only some of a sample's tokens

    def begin_step(self, step: int) -> None:
        """Set the step, and restart the count of micro-batches."""
        self._step = step
        self._passes.clear()

    def seed_passes(self, modules: Mapping[int, nn.Module], *, split: Iterable[int]) -> None:
        """Seed every training pass through ``modules``, a mapping from unit number to module.

        Units in ``split`` hold only some of a sample's tokens. Call this before recomputation
        wraps the units, and `count_passes` afterwards.
        """
        parts = set(split)
        for number, module in modules.items():
            module.forward = partial(self._run, module.forward, number in parts)

    def count_passes(self, modules: Mapping[int, nn.Module]) -> None:
        """Count the passes through ``modules`` in a step, to identify the micro-batch of each."""
        for number, module in modules.items():
            module.forward = partial(self._call_numbered, module, module.forward, number)

    def enter(self, *, split: bool) -> None:
        """Switch to this rank's stream if activations are ``split``, else to the shared stream."""
        if split != self._split:
            self._regions += 1
            self._seed_generators(split=split)

    def _call_numbered(
        self, module: nn.Module, forward: Callable[..., Tensor], number: int, inputs: Tensor
    ) -> Tensor:
        """Call ``forward`` with the step, micro-batch and unit of this pass; None in evaluation."""
        if not module.training:
            return forward(inputs, None)
        earlier = self._passes.get(number, 0)
        self._passes[number] = earlier + 1
        return forward(inputs, (self._step, self._first + earlier, number))

    def _run(
        self, forward: Callable[..., Tensor], tokens: bool, inputs: Tensor, current: _Pass | None
    ) -> Tensor:
        """Seed the pass ``current`` and call ``forward``."""
        if current is not None:
            self._current, self._regions, self._has_part = current, 0, tokens
            self._seed_generators(split=tokens and self._sequence_parallel)
        return forward(inputs)

    def _seed_generators(self, *, split: bool) -> None:
        """Seed torch's generators for the current pass and region."""
        self._split = split
        part = [1 + self._tp_rank if split else 0, *(self._context_part if self._has_part else ())]
        sequence = SeedSequence([self._seed, *self._current, self._regions, *part])
        seed = int(sequence.generate_state(1, uint64)[0])
        for generator in self._generators:
            generator.manual_seed(seed)


def draws_random_numbers(name: str, trial: nn.Module, inputs: Tensor) -> bool:
    """Return whether training passes of unit ``name`` may draw from torch's generators.

    A copy ``trial`` of the unit computes ``inputs`` [batch, ...]. Also True if the pass fails or
    leaves parameters unused: other inputs may take another path.

    Raises:
        UserError: from `trial_pass`.
    """
    small = inputs.device.type == "cpu"
    draws: Any = contextlib.nullcontext() if small else _Draws()
    before = torch.get_rng_state()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), draws:
            outputs = trial_pass(name, trial.train(), inputs)
            drawn = not torch.equal(torch.get_rng_state(), before)
    except (RuntimeError, TypeError, ValueError):
        return True
    trained = [parameter for parameter in trial.parameters() if parameter.requires_grad]
    return bool(drawn if small else draws.any) or bool(unused_tensors(outputs, trained))


class _Draws(TorchDispatchMode):
    """Record whether any operation draws from a generator."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch states no type
        self.any: bool = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.any = True
        return func(*args, **kwargs or {})
