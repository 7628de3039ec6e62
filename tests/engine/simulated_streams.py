"""Dropout in one process that drops what all ranks of a plan drop together.

It draws by the definition in `hybridperf_reference.engine.rng`, with none of its code: a tensor
that tensor parallelism would split is dropped part by part, each from its own rank's sequence.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch
from numpy import uint64
from numpy.random import SeedSequence
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Unit

_dropout = functional.dropout


class SimulatedStreams:
    """What the ranks of a replica's tp groups would draw."""

    def __init__(self, seed: int, plan: ParallelPlan) -> None:
        self._seed, self._tp, self._sp, self._plan = seed, plan.tp, plan.sp, plan
        self._arranged = False  # whether all of the unit is split, above ``tensor=1d``
        self._token_parts = 1  # of the unit, under ``cp``
        self.step, self.micro_batch = 0, 0
        self._unit, self._regions = 0, 0
        self._dim: int | None = None  # that is split here
        self._states: list[Tensor] = []  # of the generators of each part, tokens outermost

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let torch's functions drop by these streams."""
        monkeypatch.setattr(functional, "dropout", self.dropout)
        monkeypatch.setattr(functional, "scaled_dot_product_attention", self.attention)

    def follow(self, number: int, unit: Unit) -> None:
        """Begin anew at each pass through ``unit``, and enter and leave what tp splits of it."""
        is_layer = {*unit.split.values()} == {"column", "row"}
        between = 1 if self._sp and is_layer else None
        arranged = self._plan.tensor != "1d" and is_layer
        parts = self._plan.cp if is_layer else 1
        unit.module.register_forward_pre_hook(
            lambda *_: self._begin(number, between, arranged, parts)
        )
        if self._plan.tensor != "1d":
            return
        columns = [name for name, kind in unit.split.items() if kind == "column"]
        if self._tp == 1 or not columns:
            return
        if between is not None:
            for name in {name.rpartition(".")[0] for name in columns}:
                module = unit.module.get_submodule(name)
                module.register_forward_pre_hook(lambda *_: self._enter(None))
        for name in unit.split:
            to = -1 if name in columns else between
            unit.module.get_submodule(name).register_forward_hook(self._entering(to))

    def dropout(
        self, inputs: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Drop as `torch.nn.functional.dropout`, each part from its own sequence."""
        assert not inplace
        if not training or p == 0:
            return inputs
        if self._arranged:
            return inputs * self._arranged_factors(inputs, p)
        # Attention splits by its heads [batch, head, token, token], all else by its last.
        dim = 1 if self._dim == -1 and inputs.dim() == 4 else self._dim
        states, rows = enumerate(list(self._states)), []
        for row in inputs.chunk(self._token_parts, 1) if self._token_parts > 1 else [inputs]:
            factors = []
            for part in [row] if dim is None else row.chunk(self._tp, dim):
                number, state = next(states)
                torch.set_rng_state(state)
                factors.append(_dropout(torch.ones(part.shape, dtype=part.dtype), p))
                self._states[number] = torch.get_rng_state()
            rows.append(torch.cat(factors, 0 if dim is None else dim))
        return inputs * torch.cat(rows, 1 if len(rows) > 1 else 0)

    def _arranged_factors(self, inputs: Tensor, p: float) -> Tensor:
        """Return what the ranks of an arrangement multiply their samples and features by.

        Inputs are [batch, token, feature], or [batch, head, token, token] in attention, where the
        axes j and k of a cube have changed places.
        """
        samples, features = {
            "2d": ("i", "j"),
            "2.5d": ("ei", "j"),
            "3d": ("ik", "j") if inputs.dim() == 4 else ("ij", "k"),
        }[self._plan.tensor]
        sizes, factors = self._plan.tensor_axes, torch.ones_like(inputs)
        dims = [*((axis, 0) for axis in samples), (features, 1 if inputs.dim() == 4 else -1)]
        for number, place in enumerate(itertools.product(*map(range, sizes.values()))):
            part, at = factors, dict(zip(sizes, place, strict=True))
            for axis, dim in dims:
                part = part.chunk(sizes[axis], dim)[at[axis]]
            torch.set_rng_state(self._states[number])
            part.copy_(_dropout(torch.ones(part.shape, dtype=part.dtype), p))
            self._states[number] = torch.get_rng_state()
        return factors

    def attention(self, query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> Tensor:
        """Attend as `torch.nn.functional.scaled_dot_product_attention`."""
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if self._token_parts > 1 and dropout_p:
            return scores.softmax(-1) * self._ring_factors(scores, dropout_p) @ value
        return self.dropout(scores.softmax(-1), dropout_p) @ value

    def _ring_factors(self, scores: Tensor, p: float) -> Tensor:
        """Return what the ranks of a ring multiply probabilities [batch, head, token, token] by.

        Each rank draws a number from its own sequence, and from there a sequence for each part.
        """
        factors = torch.empty_like(scores, memory_format=torch.contiguous_format)
        states = enumerate(list(self._states))
        for row in factors.chunk(self._token_parts, 2):
            for heads in [row] if self._dim is None else row.chunk(self._tp, 1):
                number, state = next(states)
                torch.set_rng_state(state)
                seed = int(torch.randint(2**62, ()))
                self._states[number] = torch.get_rng_state()
                for owner, part in enumerate(heads.chunk(self._token_parts, 3)):
                    torch.manual_seed(seed + owner)
                    kept = torch.empty(part.shape, dtype=part.dtype).bernoulli_(1 - p)
                    part.copy_(kept / (1 - p))
        return factors

    def _entering(self, dim: int | None) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._enter(dim)

        return enter

    def _begin(self, number: int, dim: int | None, arranged: bool, token_parts: int) -> None:
        self._unit, self._regions, self._dim, self._arranged = number, 0, dim, arranged
        self._token_parts = token_parts
        self._seed_parts()

    def _enter(self, dim: int | None) -> None:
        before, self._dim = self._dim, dim
        if (before is None) != (dim is None):
            self._regions += 1
            self._seed_parts()

    def _seed_parts(self) -> None:
        parts = range(1, 1 + self._tp) if self._arranged or self._dim is not None else [0]
        self._states = []
        of_tokens = [[1 + number] for number in range(self._token_parts)]
        for more, part in itertools.product(of_tokens if self._token_parts > 1 else [[]], parts):
            where = [self._seed, self.step, self.micro_batch, self._unit, self._regions]
            entropy = [*where, part, *more]
            torch.manual_seed(int(SeedSequence(entropy).generate_state(1, uint64)[0]))
            self._states.append(torch.get_rng_state())
