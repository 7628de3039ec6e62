"""What a rank does in tests of mutated context parallelism: trains with one exchange wrong."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from hybridperf.plan import ParallelPlan
from hybridperf_reference.engine import parallelize, tokens
from hybridperf_reference.engine.mesh import join_ranks
from hybridperf_reference.engine.ring import Ring
from tests.engine.families import FAMILIES
from tests.engine.worlds import leave, mesh_of, run_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch.distributed as dist
    from torch import Tensor

    from hybridperf_reference.engine.mesh import Mesh

FAMILY, PLAN = "bert_pairs", "cp=2,tp=2"  # in fp64


def _sum_nothing(_: Mesh) -> dict[Any, Any]:
    return {(parallelize, "sum_token_gradients"): lambda *_, **__: None}


def _sum_over_tp(_: Mesh) -> dict[Any, Any]:
    sums = tokens.sum_token_gradients

    def over_tp(*arguments: Any, mesh: Mesh, **more: Any) -> None:
        groups = {"cp": mesh.groups["tp"]}
        sums(*arguments, mesh=type(mesh)(mesh.device, mesh.axes, groups=groups), **more)

    return {(parallelize, "sum_token_gradients"): over_tp}


def _ring_of_tp(mesh: Mesh) -> dict[Any, Any]:
    class OverTp(Ring):
        def __init__(self, _: dist.ProcessGroup, tokens: int) -> None:
            super().__init__(mesh.groups["tp"], tokens)

    return {(tokens, "Ring"): OverTp}


def _no_ring(_: Mesh) -> dict[Any, Any]:
    def own(self: Ring, part: Tensor) -> Iterator[tuple[int, Tensor]]:
        yield from ((owner, part) for owner in range(self._ranks))

    return {(Ring, "parts"): own}


def _no_return(_: Mesh) -> dict[Any, Any]:
    def sent(self: Ring, started: Any) -> Tensor:
        finish(self, started)
        part: Tensor = started[1]
        return part

    finish = Ring.finish_round
    return {(Ring, "finish_round"): sent}


def _gather_part(_: Mesh) -> dict[Any, Any]:
    def padded(self: tokens._TokenEdge, part: Tensor) -> Tensor:
        whole = part.new_zeros(len(part), self._tokens, *part.shape[2:])
        first = self._rank * -(-self._tokens // self._ranks)
        whole[:, first : first + part.shape[1]] = part
        return whole

    return {(tokens._TokenEdge, "whole"): padded}


MUTATIONS: dict[str, Callable[[Mesh], dict[Any, Any]]] = {
    "nothing": lambda _: {},
    "gradients are not summed": _sum_nothing,
    "gradients are summed over tp": _sum_over_tp,
    "the ring is over tp": _ring_of_tp,
    "keys and values stay": _no_ring,
    "what arrives is dropped": _no_return,
    "parts are not gathered": _gather_part,
}


def main(folder: Path) -> None:
    """Leave what this rank has after three steps with each mutation."""
    plan = ParallelPlan.parse(PLAN)
    with join_ranks(plan) as device:
        for number, mutate in enumerate(MUTATIONS.values()):
            with contextlib.ExitStack() as restore:
                for (owner, name), value in mutate(mesh_of(plan, device)).items():
                    restore.callback(setattr, owner, name, getattr(owner, name))
                    setattr(owner, name, value)
                found = run_plan(FAMILIES[FAMILY].of(plan), plan, device)
            leave(folder, number, found)
