"""What a rank does in tests of tensor parallelism: units of all kinds, split over two ranks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine.chain import Unit
from hybridperf_reference.engine.gradients import reduce_partial_gradients
from hybridperf_reference.engine.mesh import build_mesh, join_ranks
from hybridperf_reference.engine.tensor import apply_tensor_parallelism
from hybridperf_reference.engine.tokens import split_tokens, sum_token_gradients
from tests.engine.worlds import whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hybridperf_reference.engine.chain import Split

BATCH, TOKENS, WIDTH, INNER = 3, 6, 8, 12
COLUMN_AND_ROW: Mapping[str, Split] = {"inner": "column", "outer": "row"}


class Pair(nn.Module):
    """Two linears, with functions before, between and after them."""

    def __init__(
        self,
        width: int,
        before: Callable[[Tensor], Tensor],
        between: Callable[[Tensor], Tensor],
        after: Callable[[Tensor], Tensor],
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, INNER, bias=bias)
        self.outer = nn.Linear(INNER, width, bias=bias)
        self._before, self._between, self._after = before, between, after

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self._between(self.inner(self._before(self.norm_of(inputs))))
        return self._after(self.outer(hidden)) + inputs

    def norm_of(self, inputs: Tensor) -> Tensor:
        return self.norm(inputs) if self.norm.weight.numel() == inputs.shape[-1] else inputs


class Attention(nn.Module):
    """Queries and keys in one column; their outputs reach the row as a view of a view."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER)
        self.out = nn.Linear(INNER, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        query, key = (
            linear(inputs).unflatten(-1, (-1, 2)).permute(0, 2, 1, 3)
            for linear in (self.query, self.key)
        )
        outputs: Tensor = self.out(torch.tanh(query * key).permute(0, 2, 1, 3).flatten(2))
        return outputs


def _same(values: Tensor) -> Tensor:
    return values


def _turn(values: Tensor) -> Tensor:
    return values.transpose(1, 2)


def _turned_twice(values: Tensor) -> Tensor:
    """Return the same values in the memory order of their transpose."""
    return values.transpose(1, 2).contiguous().transpose(1, 2)


CASES: dict[str, Callable[[], tuple[nn.Module, Mapping[str, Split]]]] = {
    "plain": lambda: (Pair(WIDTH, _same, torch.tanh, _same), COLUMN_AND_ROW),
    "no bias": lambda: (Pair(WIDTH, _same, torch.tanh, _same, bias=False), COLUMN_AND_ROW),
    "tokens mixed": lambda: (Pair(TOKENS, _turn, torch.tanh, _turn), COLUMN_AND_ROW),
    "all in another memory order": lambda: (
        Pair(WIDTH, _turned_twice, _turned_twice, _turned_twice),
        COLUMN_AND_ROW,
    ),
    "attention": lambda: (
        Attention(),
        {"query": "column", "key": "column", "out": "row"},
    ),
    "a row of transposed inputs": lambda: (
        Pair(TOKENS, _turn, torch.tanh, _turn),
        {"inner": "row"},
    ),
    "a row in another memory order": lambda: (
        Pair(WIDTH, _turned_twice, _turned_twice, _turned_twice),
        {"outer": "row"},
    ),
}
SHARING_TOKENS = ("plain", "no bias", "all in another memory order", "attention")


def compute(unit: Unit, inputs: Tensor) -> dict[str, Tensor]:
    """Return outputs and gradients of ``unit`` for inputs that are a view."""
    leaf = inputs.transpose(0, 1).contiguous().requires_grad_()
    outputs = unit.module(leaf.transpose(0, 1))
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
    (outputs * weights).sum().backward()
    assert leaf.grad is not None
    return {"outputs": outputs.detach().clone(), "inputs": leaf.grad.clone()}


def build(name: str, tokens: int) -> tuple[Unit, Tensor]:
    """Return the unit and its inputs, the same in every process."""
    torch.manual_seed(5)
    module, split = CASES[name]()
    return Unit("unit", module.double(), split), torch.randn(BATCH, tokens, WIDTH).double()


def gradients(unit: Unit) -> dict[str, Tensor]:
    """Return the whole gradients of the parameters that have any."""
    named = unit.module.named_parameters()
    return {name: whole(p.grad) for name, p in named if p.grad is not None}


def main(folder: Path) -> None:
    """Note what each unit computes, split over all ranks."""
    tp = int(os.environ["WORLD_SIZE"])
    plans = {sp: ParallelPlan(tp=tp, sp=sp) for sp in (False, True)}
    found = {}
    with join_ranks(plans[False]) as device:
        mesh = build_mesh(plans[False], device)
        for name in CASES:
            for sp in (False, True) if name in SHARING_TOKENS else (False,):
                unit, inputs = build(name, TOKENS + sp)  # one more token: parts are unequal
                apply_tensor_parallelism([unit], [inputs[0]], [0], plan=plans[sp], mesh=mesh)
                split_tokens([unit], [inputs[0]] * 2, [0], plan=plans[sp], mesh=mesh)
                parts = compute(unit, inputs)
                reduce_partial_gradients(unit.module.parameters())
                sum_token_gradients([unit], plan=plans[sp], mesh=mesh)
                found[name, sp] = parts | gradients(unit)
        torch.save(found, folder / f"rank_{mesh.tp_rank}.pt")
