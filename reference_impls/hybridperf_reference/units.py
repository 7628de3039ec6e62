"""Count what the units of a task's model cost: ``python -m hybridperf_reference.units TASK OUT``.

``TASK`` is the file of a task; its unit table is written to ``OUT``, a JSON file. Without them, the
tables of all tasks of the suite are printed as ``projection/units.toml`` holds them:

``python -m hybridperf_reference.units > suite/hybridperf/projection/units.toml``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hybridperf.projection.units import Unit, UnitTable
from hybridperf.tasks.registry import find_task, read_task, task_names
from hybridperf_reference.engine.gradient_compression import RANK
from hybridperf_reference.engine.partition import forward_flops
from hybridperf_reference.models import chain_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from hybridperf.tasks.task import Task
    from hybridperf_reference.engine import chain as model
    from hybridperf_reference.engine.chain import Chain
    from hybridperf_reference.models import Build

__all__ = ["main", "unit_table"]

_HEAD: Final = """\
# What the units of each task's model cost; `Unit` in units.py defines the columns. A range of
# numbers at the end of a name stands for as many equal units. Written by
# python -m hybridperf_reference.units
"""
_FEW, _MORE = 2, 6  # samples: counting the difference leaves out what does not grow with them
_ELEMENT_BYTES: Final = 4


def unit_table(task: Task, build: Build | None = None) -> UnitTable:
    """Count what each unit of the model of ``task`` costs, without computing or storing any of it.

    ``build`` overrides the task's family.
    """
    with torch.device("meta"):
        chain = chain_of(task, 0, build)
        probe = chain.probe()
        flops, boundaries = forward_flops(probe), probe.boundaries
        few, more = _activations(chain, _FEW), _activations(chain, _MORE)
    samples = _MORE - _FEW
    units = []
    for number, unit in enumerate(chain.units):
        parameters = dict(unit.module.named_parameters())
        split = [f"{name}.weight" for name in unit.split]
        split += [f"{name}.bias" for name, kind in unit.split.items() if kind == "column"]
        units.append(
            Unit(
                unit.name,
                forward_flops=flops[number],
                parameters=_elements(parameters.values()),
                output_elements=boundaries[number + 1].numel(),
                kept_elements=(more[number] - few[number]) // (samples * _ELEMENT_BYTES),
                tp_parameters=_elements(parameters[name] for name in split if name in parameters),
                tp_reduced_elements=_row_outputs(unit, boundaries[number]),
                begins_stage=number == 0 or boundaries[number].is_floating_point(),
                buffers=_elements(unit.module.buffers()),
                tensors=len(parameters),
                low_rank_elements=sum(map(_low_rank_elements, parameters.values())),
                output_channels=_channels(boundaries[number + 1]),
            )
        )
    return UnitTable(task.name, tuple(units), boundaries[0].numel())


def _elements(tensors: Iterator[Tensor] | Any) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _low_rank_elements(parameter: Tensor) -> int:
    """Return the elements of the factors of a gradient, or of itself if it has no more."""
    if parameter.dim() < 2:
        return parameter.numel()
    rows = len(parameter)
    return min(RANK * (rows + parameter.numel() // rows), parameter.numel())


def _channels(sample: Tensor) -> int:
    """Return the channels of a ``sample`` [...]: features, or feature maps of an image."""
    return sample.shape[0] if sample.dim() > 2 else sample.shape[-1]


def _activations(chain: Chain, batch: int) -> list[int]:
    """Return the bytes that each unit makes and that are kept for the backward pass of ``batch``.

    Storage that several operations keep counts once, in the unit that made it; parameters, buffers
    and the model's inputs do not count. What the loss keeps counts in the last unit.
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
    """Return what identifies the storage of ``tensor``, as long as it exists."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - meta tensors have no address


class _FusedKernels(TorchFunctionMode):
    """Have attention and dropout computed by one kernel each, as on accelerators.

    Attention then keeps no matrix [query, key], and dropout a mask of one byte for an element. On
    the meta device torch would decompose both.
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


def _row_outputs(unit: model.Unit, sample: Tensor) -> int:
    """Return the output elements of the row-parallel layers of ``unit`` for one ``sample``."""
    counted = 0

    def count(_module: nn.Module, _inputs: object, outputs: Tensor) -> None:
        nonlocal counted
        counted += outputs[0].numel()

    rows = [name for name, kind in unit.split.items() if kind == "row"]
    handles = [unit.module.get_submodule(name).register_forward_hook(count) for name in rows]
    if rows:
        with torch.no_grad():
            unit.module.eval()(sample.unsqueeze(0))
    for handle in handles:
        handle.remove()
    return counted


def main(build: Build | None = None) -> None:
    """Write the unit table of the task that the command line names, or print those of the suite.

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
    columns = [field.name for field in dataclasses.fields(Unit)]
    lines = [_HEAD, f"columns = {json.dumps(columns)}", ""]
    for table in map(unit_table, map(find_task, task_names())):
        lines += [f'["{table.task}"]', f"input_elements = {table.input_elements}", "units = ["]
        lines += [f"    {json.dumps(row)}," for row in _rows(table.units)]
        lines += ["]", ""]
    sys.stdout.write("\n".join(lines))


def _rows(units: Sequence[Unit]) -> list[list[object]]:
    """Return one row for each run of units that differ only in the number that ends their names."""
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
        rows.append([run[0].name + more, *dataclasses.astuple(run[0])[1:]])
    return rows


if __name__ == "__main__":
    main()
