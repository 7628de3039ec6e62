"""Tensor parallelism: linears split over ranks, and tokens between them (1D, sequence parallel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from reference_impls.engine.norms import is_spread, local_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh

    from reference_impls.engine.chain import Unit
    from reference_impls.engine.mesh import Mesh
    from suite.plan import ParallelPlan

__all__ = ["apply_tensor_parallelism", "sequence_parts", "shares_tokens", "sum_token_gradients"]


def apply_tensor_parallelism(
    units: Sequence[Unit],
    boundaries: Sequence[Tensor],
    numbers: Iterable[int],
    *,
    plan: ParallelPlan,
    mesh: Mesh,
) -> None:
    """Split the linears that those ``numbers`` of a chain's ``units`` declare over the axis tp.

    Shoeybi et al. 2019: a column's outputs stay split and are the inputs of the next row, whose
    outputs are summed. Korthikanti et al. 2022 with ``sp``: the sum is scattered over the tokens,
    which are gathered before the next column. A row without columns takes its part of whole inputs.

    ``boundaries`` are one sample before each unit, whole: [token, ...] where tokens are shared.
    """
    assert mesh.axes is not None
    axis = mesh.axes["tp"]
    shared = [plan.sp and shares_tokens(unit) for unit in units]
    for number in numbers:
        unit = units[number]
        tokens = len(boundaries[number]) if shared[number] else None
        _split(unit, axis, tokens)
        if shared[number] and (number == 0 or not shared[number - 1]):
            unit.module.register_forward_pre_hook(_Move(axis, Replicate(), Shard(1)).before)
        if shared[number] and (number + 1 == len(units) or not shared[number + 1]):
            unit.module.register_forward_hook(_Move(axis, Shard(1), Replicate(), tokens).after)


def _split(unit: Unit, axis: DeviceMesh, tokens: int | None) -> None:
    """Split the linears of ``unit``, which gets parts of ``tokens`` or, without them, the whole."""
    if not unit.split:
        return
    whole = Replicate() if tokens is None else Shard(1)
    columns = {name for name, kind in unit.split.items() if kind == "column"}
    into_rows = Shard(-1) if columns else Replicate()
    # Columns of one module have one input: gathered once, and so is the sum of its gradients.
    for place in {name.rpartition(".")[0] or name for name in columns}:
        gather = _Move(axis, whole, Replicate(), tokens)
        unit.module.get_submodule(place).register_forward_pre_hook(gather.before_columns)
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel()
        if name in columns
        else RowwiseParallel(input_layouts=into_rows, output_layouts=whole)
        for name in unit.split
    }
    parallelize_module(unit.module, axis, styles)


class _Move:
    """Change how a plain tensor is spread over ``axis``, with the gradient the other way.

    Where it is spread over ``tokens``, their number need not divide: the last part is smaller.
    """

    def __init__(
        self, axis: DeviceMesh, source: Any, target: Any, tokens: int | None = None
    ) -> None:
        self._axis, self._source, self._target, self._tokens = axis, source, target, tokens

    def __call__(self, values: Tensor) -> DTensor:
        shape = list(values.shape)
        if self._tokens is not None:
            shape[1] = self._tokens
        spread = DTensor.from_local(
            values,
            self._axis,
            [self._source],
            run_check=False,
            shape=torch.Size(shape),
            stride=torch.empty(shape, device="meta").stride(),
        )
        return spread.redistribute(placements=[self._target])

    def before(self, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        return (self(inputs[0]).to_local(),)

    def before_columns(self, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        whole: Tensor = self(inputs[0])
        if self._tokens is not None and self._tokens % self._axis.size():
            # What is gathered of unequal parts is a view, which torch 2.11's linears do not take.
            whole = whole.clone(memory_format=torch.contiguous_format)
        return (whole,)

    def after(self, _module: nn.Module, _inputs: object, outputs: Tensor) -> Tensor:
        # A stage may end here, and a split backward pass detaches in place, which views forbid.
        return self(outputs).to_local().clone()


def shares_tokens(unit: Unit) -> bool:
    """Tell whether ``unit`` works token by token between its linears: it has columns and rows."""
    return set(unit.split.values()) == {"column", "row"}


def sequence_parts(
    units: Sequence[Unit], boundaries: Sequence[Tensor], *, plan: ParallelPlan, mesh: Mesh
) -> list[Tensor]:
    """Return what this rank has of a sample before each unit, and after the last: [token, ...]."""
    if not plan.sp:
        return list(boundaries)
    shared = [False, *map(shares_tokens, units), False]
    return [
        sample.chunk(plan.tp)[mesh.part] if shared[number] and shared[number + 1] else sample
        for number, sample in enumerate(boundaries)
    ]


def sum_token_gradients(units: Sequence[Unit], *, mesh: Mesh) -> None:
    """Sum over the axis tp, in one all-reduce, gradients of parameters that saw only own tokens."""
    gradients = [
        parameter.grad
        for unit in units
        if shares_tokens(unit)
        for parameter in unit.module.parameters()
        if parameter.grad is not None and not _is_split(parameter)
    ]
    parts = local_parts(gradients)
    if not parts:
        return
    # Gradients may be offloaded; the group's library speaks for the device.
    flat = torch.cat([part.flatten() for part in parts]).to(mesh.device)
    dist.all_reduce(flat, group=mesh.group("tp"))
    for part, whole in zip(parts, flat.split([p.numel() for p in parts]), strict=True):
        part.copy_(whole.view_as(part))


def _is_split(parameter: nn.Parameter) -> bool:
    """Tell whether ``parameter`` belongs to a split linear, whose gradient torch sums itself."""
    return is_spread(parameter) and "tp" in (parameter.device_mesh.mesh_dim_names or ())
