"""Regions of units between which each rank holds a part of every sample's tokens: `sp` and `cp`.

A region extends over consecutive units that work token by token. Tokens are sliced at its entrance
and gathered at its exit, so that every rank has all outputs: each computes the same head and loss.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from hybridperf_reference.engine.gradients import flatten
from hybridperf_reference.engine.norms import is_dtensor, local_parts
from hybridperf_reference.engine.ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Unit
    from hybridperf_reference.engine.mesh import Mesh

__all__ = [
    "RegionEdge",
    "enter_at",
    "leave_at",
    "split_tokens",
    "sum_token_gradients",
    "token_axis",
    "within_regions",
]


def token_axis(plan: ParallelPlan) -> str | None:
    """Return the mesh axis over which ``plan`` splits tokens, or None."""
    return "cp" if plan.cp > 1 else "tp" if plan.sp else None


def within_regions(units: Sequence[Unit]) -> list[bool]:
    """Return whether activations are split before each unit and after the last."""
    split = [False, *(unit.shares_tokens for unit in units), False]
    return [before and after for before, after in pairwise(split)]


def split_tokens(
    units: Sequence[Unit],
    boundaries: Sequence[Tensor],
    numbers: Iterable[int],
    *,
    plan: ParallelPlan,
    mesh: Mesh,
) -> list[Tensor]:
    """Split the tokens of the units in ``numbers`` over ranks; units change in place.

    Parts are those of `torch.Tensor.chunk`. Under ``cp``, attention is replaced by a ring; under
    ``sp``, column-parallel layers gather tokens (`hybridperf_reference.engine.tensor`).

    Return this rank's part [token, ...] of a sample before each unit and after the last;
    ``boundaries`` are the whole samples [...], as are parts outside of regions.
    """
    axis = token_axis(plan)
    group = mesh.group(axis) if axis else None
    if group is None:
        return list(boundaries)
    within = within_regions(units)
    for number in numbers:
        if not units[number].shares_tokens:
            continue
        tokens, module = len(boundaries[number]), units[number].module
        edge = _TokenEdge(group, tokens)
        if not within[number]:
            enter_at(module, edge)
        if not within[number + 1]:
            leave_at(module, edge)
        for part in module.modules() if axis == "cp" else ():
            if hasattr(part, "attend"):
                part.attend = Ring(group, tokens)  # type: ignore[assignment]  # stubs know no functions
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    return [
        sample.chunk(ranks)[rank] if inside else sample
        for sample, inside in zip(boundaries, within, strict=True)
    ]


def sum_token_gradients(units: Sequence[Unit], *, plan: ParallelPlan, mesh: Mesh) -> None:
    """Sum gradients of parameters that saw only this rank's tokens, in one all-reduce.

    Under ``sp``, gradients of split layers are whole: their inputs were gathered.
    """
    axis = token_axis(plan)
    if axis is None:
        return
    parameters = dict.fromkeys(  # each once, if several units have it
        parameter
        for unit in units
        if unit.shares_tokens
        for parameter in unit.module.parameters()
        if axis == "cp" or not _is_split(parameter)
    )
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = local_parts(gradients)
    if not parts:
        return
    # Gradients may be offloaded to the CPU; the group reduces on the device.
    with flatten(parts, device=mesh.device) as flat:
        dist.all_reduce(flat, group=mesh.group(axis))


def _is_split(parameter: nn.Parameter) -> bool:
    """Return whether ``parameter`` is of a split linear layer; DTensor reduces its gradient."""
    return is_dtensor(parameter) and "tp" in (parameter.device_mesh.mesh_dim_names or ())


class RegionEdge(Protocol):
    """The edges of a region of units in which each rank holds a part of every sample."""

    def part(self, whole: Tensor) -> Tensor:
        """Return this rank's part of ``whole`` [batch, ...], which all ranks have."""

    def whole(self, part: Tensor) -> Tensor:
        """Gather the whole [batch, ...] from the ``part`` of each rank."""


def enter_at(module: nn.Module, edge: RegionEdge) -> None:
    """Let ``module`` begin a region: it gets this rank's part of its inputs."""

    def enter(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (_Enter.apply(inputs[0], edge),)

    module.register_forward_pre_hook(enter)


def leave_at(module: nn.Module, edge: RegionEdge) -> None:
    """Let ``module`` end a region: its outputs are gathered."""

    def leave(_module: nn.Module, _inputs: object, outputs: Tensor) -> Tensor:
        whole: Tensor = _Leave.apply(outputs, edge)
        return whole

    module.register_forward_hook(leave)


class _Enter(torch.autograd.Function):
    """Take this rank's part; the gradient is gathered, so that it is whole on every rank."""

    @staticmethod
    def forward(context: Any, whole: Tensor, edge: RegionEdge) -> Tensor:
        context.edge = edge
        return edge.part(whole)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.edge.whole(gradients[0]), None


class _Leave(torch.autograd.Function):
    """Gather the whole; this rank's part is taken of the gradient, which all ranks have."""

    @staticmethod
    def forward(context: Any, part: Tensor, edge: RegionEdge) -> Tensor:
        context.edge = edge
        return edge.whole(part)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.edge.part(gradients[0]), None


class _TokenEdge:
    """Parts of ``tokens`` [batch, token, ...] over ``group``."""

    def __init__(self, group: dist.ProcessGroup, tokens: int) -> None:
        self._group, self._tokens = group, tokens
        self._ranks, self._rank = dist.get_world_size(group), dist.get_rank(group)

    def part(self, whole: Tensor) -> Tensor:
        """Return this rank's part [batch, token, ...] of ``whole``."""
        return whole.chunk(self._ranks, dim=1)[self._rank].contiguous()

    def whole(self, part: Tensor) -> Tensor:
        """Return all tokens [batch, token, ...] from each rank's ``part``."""
        most = -(-self._tokens // self._ranks)  # collectives take equal parts
        padded = part.new_zeros(len(part), most, *part.shape[2:])
        padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded) for _ in range(self._ranks)]
        dist.all_gather(parts, padded, group=self._group)
        return torch.cat(parts, dim=1)[:, : self._tokens].contiguous()
