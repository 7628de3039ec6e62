"""What a rank does in tests of 2D, 2.5D and 3D: encoder layers, split over an arrangement."""

from __future__ import annotations

import contextlib
import itertools
import os
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import PlanFields
from hybridperf_reference.engine import tensor_nd
from hybridperf_reference.engine.chain import Unit
from hybridperf_reference.engine.gradients import reduce_partial_gradients
from hybridperf_reference.engine.mesh import Mesh, join_ranks
from hybridperf_reference.transformer import SPLIT, EncoderLayer
from tests.engine.bytes_worlds import CountBytes
from tests.engine.worlds import mesh_of, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

BATCH, TOKENS, HIDDEN, INNER, HEADS = 36, 5, 36, 72, 6
LAYERS = 2
TENSOR_AXES: Callable[[PlanFields], Mapping[str, int]] = vars(PlanFields)["tensor_axes"].fget
PLANS = {
    4: ("tp=4,tensor=2d",),
    8: ("tp=8,tensor=2.5d", "tp=8,tensor=3d"),
    9: ("tp=9,tensor=2d",),
    12: ("tp=12,tensor=2.5d",),  # a depth of three and a side of two
}


def build(*, norm_first: bool) -> tuple[list[Unit], Tensor, Tensor]:
    """Return units, their inputs and the gradient of their outputs, the same in every process."""
    torch.manual_seed(5)
    layers = [
        EncoderLayer(HIDDEN, HEADS, INNER, norm_first=norm_first, epsilon=1e-6).double()
        for _ in range(LAYERS)
    ]
    for layer in layers:
        for parameter in layer.parameters():  # no norm with weights of one
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    units = [Unit(f"layers.{number}", layer, SPLIT) for number, layer in enumerate(layers)]
    inputs, gradient = torch.randn(2, BATCH, TOKENS, HIDDEN).double().unbind()
    # Far from zero: the difference of a mean square and a squared mean would lose four digits.
    return units, inputs + 100 if norm_first else inputs, gradient


def compute(units: Sequence[Unit], inputs: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Return outputs and all gradients."""
    leaf = inputs.clone().requires_grad_()
    outputs = leaf
    for unit in units:
        outputs = unit.module(outputs)
    outputs.backward(gradient)
    for unit in units:
        reduce_partial_gradients(unit.module.parameters())
    assert leaf.grad is not None
    found = {"outputs": outputs.detach(), "inputs": leaf.grad}
    for unit in units:
        for name, parameter in unit.module.named_parameters():
            assert parameter.grad is not None
            found[f"{unit.name}.{name}"] = parameter.grad
    return found


def split(plan: ParallelPlan, mesh: Mesh, *, norm_first: bool) -> tuple[list[Unit], Tensor, Tensor]:
    """Return `build` with units that are split."""
    units, inputs, gradient = build(norm_first=norm_first)
    tensor_nd.apply_arranged_parallelism(units, range(LAYERS), plan=plan, mesh=mesh)
    return units, inputs, gradient


def mutations(plan: ParallelPlan) -> list[tuple[str, str, str | None]]:
    """Return each collective, its axis, and the axis to take instead, or None to leave it out."""
    axes = plan.tensor_axes
    found = []
    for collective, axis in itertools.product(("_gather", "_scatter", "all_reduce"), axes):
        if (collective, axis) in {("_gather", "e"), ("_scatter", "e")}:
            continue  # of the depth, only gradients are added up
        others = [other for other in axes if other != axis and axes[other] == axes[axis]]
        found += [(collective, axis, other) for other in (None, *others)]
    return [*found, ("_gather", "tp", None)]


@contextlib.contextmanager
def mutated(mesh: Mesh, collective: str, axis: str, other: str | None) -> Iterator[None]:
    """Leave ``collective`` out where it is over ``axis``, or take it over ``other`` instead."""
    left_out: dict[str, Callable[[Tensor, int, int, int], Tensor]] = {
        "_gather": lambda values, size, _, dim: torch.cat([values] * size, dim),
        "_scatter": lambda values, size, rank, dim: values.chunk(size, dim)[rank],
    }
    if collective == "all_reduce":
        whole_reduce = dist.all_reduce

        def reduce(values: Tensor, *, group: dist.ProcessGroup) -> None:
            if group is not mesh.group(axis):
                whole_reduce(values, group=group)
            elif other is not None:
                whole_reduce(values, group=mesh.group(other))

        with mock.patch.object(dist, "all_reduce", reduce):
            yield
        return
    original: Callable[[Tensor, Any, int], Tensor] = getattr(tensor_nd, collective)

    def change(values: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        if group is not mesh.group(axis):
            return original(values, group, dim)
        if other is not None:
            return original(values, mesh.group(other), dim)
        return left_out[collective](values, group.size(), group.rank(), dim)

    with mock.patch.object(tensor_nd, collective, change):
        yield


def error(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest relative error; the gradient of a key's bias is zero but for rounding."""
    compared = [name for name in expected if "key.bias" not in name]
    errors = [(whole(found[n]) - expected[n]).norm() / expected[n].norm() for n in compared]
    return torch.stack(errors).max().item()


def main(folder: Path, texts: Sequence[str], mutate: bool) -> None:
    """Note what layers compute and send under each plan, and the errors under mutations."""
    with join_ranks(ParallelPlan.parse(texts[0])) as device:
        for number, text in enumerate(texts):
            plan = ParallelPlan.parse(text)
            mesh = mesh_of(plan, device)
            found: dict[str, Any] = {}
            for norm_first in (True, False):
                parts = split(plan, mesh, norm_first=norm_first)
                with CountBytes() as counted:
                    computed = compute(*parts)
                sizes = {k: tuple(dist.get_process_group_ranks(g)) for k, g in mesh.groups.items()}
                axes = {ranks: axis for axis, ranks in sizes.items()}
                found |= {
                    f"computed {norm_first}": {n: whole(each) for n, each in computed.items()},
                    f"bytes {norm_first}": {
                        f"{'allreduce' if kind == 'few' else kind} {axes[ranks]}": count
                        for (kind, ranks), count in counted.bytes.items()
                    },
                }
            expected = compute(*build(norm_first=True)) if mutate else {}
            for mutation in mutations(plan) if mutate else ():
                parts = split(plan, mesh, norm_first=True)
                with mutated(mesh, *mutation):
                    computed = compute(*parts)
                found[" ".join(map(str, mutation))] = error(computed, expected)
            if mutate:
                # DTensor would put parts together in another order than layers cut them.
                axes_of = property(lambda self: dict(sorted(TENSOR_AXES(self).items())))
                with mock.patch.object(PlanFields, "tensor_axes", axes_of):
                    computed = compute(*split(plan, mesh_of(plan, device), norm_first=True))
                    found["axes in order of names"] = error(computed, expected)
            torch.save(found, folder / f"plan_{number}_rank_{os.environ['RANK']}.pt")
