"""Count the costs of a model's units: ``python -m hybridperf_reference.units TASK OUT``.

``TASK`` is the file of a task; its unit table is written to ``OUT``, a JSON file. Without them, the
tables of all tasks of the suite are printed, the contents of ``projection/units.toml``:

``python -m hybridperf_reference.units > suite/hybridperf/projection/units.toml``
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode  # there is no public name
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hybridperf.projection.units import Parameters, UnitCounts, UnitTable, unit_columns
from hybridperf.tasks.registry import find_task, read_task, task_names
from hybridperf_reference.engine.batchnorm import is_batch_norm
from hybridperf_reference.engine.gradient_reducer import low_rank_elements
from hybridperf_reference.engine.parallelize import forward_flops, parameter_groups
from hybridperf_reference.engine.precision import is_computed_narrow
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine import chain as model
    from hybridperf_reference.engine.chain import Chain
    from hybridperf_reference.models import Build

__all__ = ["main", "unit_table"]

_HEAD: Final = """\
# What the units of each task's model cost; `UnitCounts` in units.py defines the columns. A range of
# numbers at the end of a name stands for as many equal units. Written by
# python -m hybridperf_reference.units
"""
_FEW, _MORE = 2, 6  # samples: their difference excludes what does not grow with the batch
_ELEMENT_BYTES: Final = 4


def unit_table(task: Task, build: Build | None = None) -> UnitTable:
    """Count the costs of each unit of ``task``'s model, on the meta device.

    ``build`` overrides the task's family.
    """
    with torch.device("meta"):
        chain = chain_of(task, 0, build)
        probe = chain.probe()
        flops, boundaries = forward_flops(probe), probe.boundaries
        few, more = _activations(chain, _FEW), _activations(chain, _MORE)
        splits = _split_layers(chain)
    samples = _MORE - _FEW
    units = []
    for number, unit in enumerate(chain.units):
        parameters, output = list(unit.module.parameters()), boundaries[number + 1]
        units.append(
            UnitCounts(
                unit.name,
                forward_flops=flops[number],
                parameter_groups=tuple(parameter_groups(unit)),
                output_elements=output.numel(),
                kept_elements=(more[number] - few[number]) // (samples * _ELEMENT_BYTES),
                tp_outputs=splits[number].outputs,
                tp_outputs_again=splits[number].outputs_again,
                tp_inputs=splits[number].inputs,
                tp_narrow_inputs=splits[number].narrow_inputs,
                tokens=len(boundaries[number]) if unit.shares_tokens else 0,
                begins_stage=number == 0 or boundaries[number].is_floating_point(),
                buffers=sum(buffer.numel() for buffer in unit.module.buffers()),
                low_rank_elements=sum(map(low_rank_elements, parameters)),
                # Features, or the feature maps of an image.
                output_channels=output.shape[0] if output.dim() > 2 else output.shape[-1],
                batch_norm_channels=sum(
                    part.num_features for part in unit.module.modules() if is_batch_norm(part)
                ),
                is_narrow=is_computed_narrow(unit.module),
            )
        )
    return UnitTable(task.name, tuple(units), boundaries[0].numel())


@dataclass(slots=True)
class _SplitLayers:
    """Elements at the layers of a unit that tensor parallelism splits, for one sample."""

    outputs: int = 0  #: outputs of row-parallel layers
    outputs_again: int = 0  #: outputs that a recomputation computes again
    inputs: int = 0  #: inputs of column-parallel layers, or else of row-parallel layers
    narrow_inputs: int = 0  #: inputs that autocast has converted to bf16 or fp16


def _split_layers(chain: Chain) -> list[_SplitLayers]:
    """Return the elements at split layers of each unit of ``chain``.

    Computed under autocast with fake tensors, since autocast skips the meta device.
    """
    found = [_SplitLayers() for _ in chain.units]
    if not any(unit.split for unit in chain.units):
        return found
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"), _FusedKernels():
        outputs = chain.example(1)[0]
        for unit, counted in zip(chain.units, found, strict=True):
            module = _without_values(unit.module).train()
            hooks = _CountSplitLayers(unit, module, counted)
            with torch.autocast("cpu", dtype=torch.bfloat16), hooks:
                outputs = module(outputs)
    return found


def _without_values(module: nn.Module) -> nn.Module:
    """Return a copy of ``module`` on the CPU, with tensors of the current mode."""
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="cpu"))
        for parameter in module.parameters()
    }
    memo |= {id(b): torch.empty_like(b, device="cpu") for b in module.buffers()}
    return copy.deepcopy(module, memo)


class _CountSplitLayers(saved_tensors_hooks):
    """Count the elements at split layers, in a forward pass of ``module``.

    A recomputation ends with the last saved tensor, so outputs are computed again if a tensor is
    saved after them.
    """

    def __init__(self, unit: model.Unit, module: nn.Module, counted: _SplitLayers) -> None:
        self._counted, self._last = counted, 0  # outputs since the last saved tensor
        super().__init__(self._keep, lambda tensor: tensor)
        rows = unit.split.keys() - unit.columns
        for name in rows:
            module.get_submodule(name).register_forward_hook(self._leave)
        for name in unit.gather_points or rows:
            module.get_submodule(name).register_forward_pre_hook(self._enter)

    def _keep(self, tensor: Tensor) -> Tensor:
        self._counted.outputs_again += self._last
        self._last = 0
        return tensor

    def _leave(self, _module: nn.Module, _inputs: object, outputs: Tensor) -> None:
        self._last += outputs.numel()
        self._counted.outputs += outputs.numel()

    def _enter(self, _module: nn.Module, inputs: tuple[Tensor]) -> None:
        self._counted.inputs += inputs[0].numel()
        if inputs[0].dtype == torch.bfloat16:
            self._counted.narrow_inputs += inputs[0].numel()


def _activations(chain: Chain, batch: int) -> list[int]:
    """Return the bytes of each unit's saved activations for ``batch`` samples.

    Storage that several operations save counts once, in the unit that made it; parameters, buffers
    and the model's inputs do not count. Tensors saved by the loss count in the last unit.
    """
    held = [t for unit in chain.units for t in (*unit.module.parameters(), *unit.module.buffers())]
    maker = {_storage(tensor): -1 for tensor in held}  # number of a unit, by storage
    kept: list[dict[int, int]] = [{} for _ in chain.units]
    inputs, targets = chain.example(batch)
    if inputs.dim() == 4:  # as a stage converts them
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    maker[_storage(inputs)] = -1
    held += [inputs, targets]
    number = 0

    def keep(tensor: Tensor) -> Tensor:
        held.append(tensor)  # else a later tensor could get the same address
        owner = maker.setdefault(_storage(tensor), number)
        if owner >= 0:
            kept[owner][_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    maker[_storage(targets)] = -1
    with saved_tensors_hooks(keep, lambda tensor: tensor), _FusedKernels():
        outputs = inputs
        for number, unit in enumerate(chain.units):
            outputs = unit.module.train()(outputs)
            held.append(outputs)
            maker.setdefault(_storage(outputs), number)
        chain.objective.loss(outputs, targets)
    return [sum(storages.values()) for storages in kept]


def _storage(tensor: Tensor) -> int:
    """Return the identity of ``tensor``'s storage, while it exists."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - meta tensors have no address


class _FusedKernels(TorchFunctionMode):
    """Compute attention and dropout by fused kernels, as on accelerators.

    Attention then saves no matrix [query, key], and dropout a mask of one byte per element. On the
    meta device torch would decompose both.
    """

    def __torch_function__(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        replaced = {
            functional.scaled_dot_product_attention: _attention,
            functional.dropout: _dropout,
        }
        return replaced.get(function, function)(*args, **kwargs or {})


def _attention(query: Tensor, key: Tensor, value: Tensor, **_: float) -> Tensor:
    return cast(
        "Tensor",
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0],  # noqa: SLF001 - it has a meta kernel in every release
    )


def _dropout(values: Tensor, p: float, **_: bool) -> Tensor:
    return torch.native_dropout(values, p, train=True)[0] if p else values


def main(build: Build | None = None) -> None:
    """Write the unit table of the command line's task, or print all tables of the suite.

    ``build`` overrides the task's model family.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", type=Path, nargs="?", help="file of the task")
    parser.add_argument("out", type=Path, nargs="?", help="file to write")
    options = parser.parse_args()
    if options.task is None:
        _print_tables()
    elif options.out is None:
        parser.error("expected TASK OUT, or neither")
    else:
        table = unit_table(read_task(options.task), build).as_table()
        options.out.write_text(json.dumps(table, allow_nan=False) + "\n")


def _print_tables() -> None:
    """Print the tables of every task of the suite."""
    lines = [_HEAD, f"columns = {json.dumps(unit_columns())}", ""]
    for table in map(unit_table, map(find_task, task_names())):
        lines += [f'["{table.task}"]', f"input_elements = {table.input_elements}", "units = ["]
        lines += [f"    {json.dumps(row, default=_group_row)}," for row in _rows(table.units)]
        lines += ["]", ""]
    sys.stdout.write("\n".join(lines))


def _group_row(group: Parameters) -> list[object]:
    """Return the values of ``group``, without the name that most groups lack."""
    *values, shared = dataclasses.astuple(group)
    return [*values, shared] if shared else values


def _rows(units: Sequence[UnitCounts]) -> list[list[object]]:
    """Return a row for each run of units that differ only in the final number of their names."""
    runs = [[units[0]]]
    for last, unit in pairwise(units):
        prefix, _, number = last.name.rpartition(".")
        if number.isdecimal() and unit == dataclasses.replace(
            last, name=f"{prefix}.{int(number) + 1}"
        ):
            runs[-1].append(unit)
        else:
            runs.append([unit])
    rows = []
    for run in runs:
        more = f"..{run[-1].name.rpartition('.')[2]}" if len(run) > 1 else ""
        values = [getattr(run[0], name) for name in unit_columns()[1:]]
        rows.append([run[0].name + more, *values])
    return rows


if __name__ == "__main__":
    main()
