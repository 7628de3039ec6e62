"""Tensor and sequence parallelism: linear layers, and the tokens between them, split over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from hybridperf_reference.engine.gradients import flatten
from hybridperf_reference.engine.norms import is_dtensor, local_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.chain import Unit
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.rng import RngStreams

__all__ = [
    "apply_tensor_parallelism",
    "enter_split_regions",
    "sequence_parts",
    "sum_token_gradients",
]


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
    instead, and all-gathered before the next column-parallel layer (Korthikanti et al. 2022). A
    unit with row-parallel layers only slices its replicated inputs.

    ``boundaries`` are unsplit samples [...] before each unit, [token, ...] where tokens are split.
    """
    assert mesh.axes is not None
    axis = mesh.axes["tp"]
    shared = [plan.sp and unit.shares_tokens for unit in units]
    for number in numbers:
        unit = units[number]
        tokens = len(boundaries[number]) if shared[number] else None
        _split(unit, axis, tokens)
        if shared[number] and (number == 0 or not shared[number - 1]):
            unit.module.register_forward_pre_hook(_Redistribute(axis, Replicate(), Shard(1)).before)
        if shared[number] and (number + 1 == len(units) or not shared[number + 1]):
            unit.module.register_forward_hook(
                _Redistribute(axis, Shard(1), Replicate(), tokens).after
            )


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

    def before(self, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        """As a forward pre-hook, redistribute the module's inputs."""
        return (self(inputs[0]).to_local(),)

    def before_columns(self, _: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        """As a forward pre-hook, redistribute inputs of column-parallel layers, as a DTensor."""
        whole: Tensor = self(inputs[0])
        # Gathering uneven shards returns a view, which linear layers reject in torch 2.11. The
        # DTensor's own strides do not show it.
        if is_dtensor(whole) and not whole.to_local().is_contiguous():
            whole = whole.clone(memory_format=torch.contiguous_format)
        return (whole,)

    def after(self, _module: nn.Module, _inputs: object, outputs: Tensor) -> Tensor:
        """As a forward hook, redistribute the module's outputs."""
        # A stage may end here, and the pipeline runtime's detach in place is not allowed on views.
        return self(outputs).to_local().clone()


def sequence_parts(
    units: Sequence[Unit], boundaries: Sequence[Tensor], *, plan: ParallelPlan, mesh: Mesh
) -> list[Tensor]:
    """Return this rank's part [token, ...] of a sample before each unit and after the last.

    ``boundaries`` are the whole samples [...]. Without ``sp``, or between units that do not support
    it, the part is the whole sample.
    """
    if not plan.sp:
        return list(boundaries)
    shared = [False, *(unit.shares_tokens for unit in units), False]
    return [
        sample.chunk(plan.tp)[mesh.tp_rank] if shared[number] and shared[number + 1] else sample
        for number, sample in enumerate(boundaries)
    ]


def sum_token_gradients(units: Sequence[Unit], *, mesh: Mesh) -> None:
    """Sum gradients of parameters that saw only this rank's tokens, in one all-reduce over tp."""
    parameters = dict.fromkeys(  # each once, if several units have it
        parameter
        for unit in units
        if unit.shares_tokens
        for parameter in unit.module.parameters()
        if not _is_split(parameter)
    )
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = local_parts(gradients)
    if not parts:
        return
    # Gradients may be offloaded to the CPU; the group reduces on the device.
    with flatten(parts, device=mesh.device) as flat:
        dist.all_reduce(flat, group=mesh.group("tp"))


def _is_split(parameter: nn.Parameter) -> bool:
    """Return whether ``parameter`` is of a split linear layer; DTensor reduces its gradient."""
    return is_dtensor(parameter) and "tp" in (parameter.device_mesh.mesh_dim_names or ())
