"""Tensor and sequence parallelism: linear layers, and the tokens between them, split over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from hybridperf_reference.engine.norms import is_dtensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Unit
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.rng import RngStreams

__all__ = ["apply_tensor_parallelism", "enter_split_regions"]


def apply_tensor_parallelism(
    units: Sequence[Unit],
    boundaries: Sequence[Tensor],
    numbers: Iterable[int],
    *,
    plan: ParallelPlan,
    mesh: Mesh,
) -> None:
    """Split the linear layers declared by the units in ``numbers`` over the mesh axis tp, in place.

    Column-parallel outputs stay split by features, as inputs of the next row-parallel layer, whose
    outputs are all-reduced (Shoeybi et al. 2019). With ``sp`` they are reduce-scattered over tokens
    instead, and all-gathered before the next column-parallel layer (Korthikanti et al. 2022);
    `split_tokens` slices and gathers them around the units. A unit with row-parallel layers only
    slices its replicated inputs.

    ``boundaries`` are unsplit samples [...] before each unit, [token, ...] where tokens are split.
    """
    assert mesh.axes is not None
    axis = mesh.axes["tp"]
    for number in numbers:
        unit = units[number]
        _split(unit, axis, len(boundaries[number]) if plan.sp and unit.shares_tokens else None)


def enter_split_regions(unit: Unit, streams: RngStreams, *, tokens: bool) -> None:
    """Switch random number streams at the boundaries of split regions of ``unit``.

    A region extends from each column-parallel to the next row-parallel layer. If ``tokens`` are
    split, so is the rest of the unit, except from their all-gather to the column-parallel layers.
    """

    def whole(*_: object) -> None:
        streams.enter(split=False)

    def parts(*_: object) -> None:
        streams.enter(split=True)

    columns = unit.columns
    for name in unit.split if columns else ():
        leaves = parts if name in columns or tokens else whole
        unit.module.get_submodule(name).register_forward_hook(leaves)
    if tokens:
        for place in unit.gather_points:
            unit.module.get_submodule(place).register_forward_pre_hook(whole)


def _split(unit: Unit, axis: DeviceMesh, tokens: int | None) -> None:
    """Split the linear layers of ``unit`` over ``axis``.

    Inputs are split over ``tokens``, or replicated if None.
    """
    if not unit.split:
        return
    whole = Replicate() if tokens is None else Shard(1)
    columns = unit.columns
    into_rows = Shard(-1) if columns else Replicate()
    # Column-parallel layers of one module share an input: it is gathered, and its gradient reduced,
    # once for all of them.
    for place in unit.gather_points:
        gather = _Redistribute(axis, whole, Replicate(), tokens)
        unit.module.get_submodule(place).register_forward_pre_hook(gather.before_columns)
    styles: dict[str, ParallelStyle] = {
        name: ColwiseParallel()
        if name in columns
        else RowwiseParallel(input_layouts=into_rows, output_layouts=whole)
        for name in unit.split
    }
    for name in unit.split:
        linear = unit.module.get_submodule(name)
        linear.register_forward_pre_hook(_contiguous_inputs)
    parallelize_module(unit.module, axis, styles)
    for name in unit.split:
        unit.module.get_submodule(name).register_forward_hook(_contiguous_gradients)


def _contiguous_inputs(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Make inputs [...] contiguous, to match the strides of a DTensor."""
    return (inputs[0].contiguous(),)


def _contiguous_gradients(_module: nn.Module, _inputs: object, outputs: Tensor) -> None:
    """Make the gradients of ``outputs`` contiguous."""
    if outputs.requires_grad:
        outputs.register_hook(Tensor.contiguous)


class _Redistribute:
    """Redistribute a plain tensor [...] over ``axis`` between two placements, with autograd.

    ``tokens`` is the number of tokens of split tensors [batch, token, ...], and need not be
    divisible: the last shards are smaller.
    """

    def __init__(
        self, axis: DeviceMesh, source: Any, target: Any, tokens: int | None = None
    ) -> None:
        self._axis, self._source, self._target, self._tokens = axis, source, target, tokens

    def __call__(self, values: Tensor) -> DTensor:
        shape = list(values.shape)
        if self._tokens is not None:
            shape[1] = self._tokens
        distributed = DTensor.from_local(
            values.contiguous(),  # matches the strides below
            self._axis,
            [self._source],
            run_check=False,
            shape=torch.Size(shape),
            stride=torch.empty(shape, device="meta").stride(),
        )
        return distributed.redistribute(placements=[self._target])

    def before_columns(self, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        """As a forward pre-hook, redistribute inputs of column-parallel layers, as a DTensor."""
        whole: Tensor = self(inputs[0])
        # Gathering uneven shards returns a view, which linear layers reject in torch 2.11. The
        # DTensor's own strides do not show it.
        if is_dtensor(whole) and not whole.to_local().is_contiguous():
            whole = whole.clone(memory_format=torch.contiguous_format)
        return (whole,)
