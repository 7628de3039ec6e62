"""What the units of a task's model cost: as a table by task, and as times on one device."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.spelling import did_you_mean
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Unit", "UnitTable", "UnitTimes", "UnitTiming", "load_units"]

_FILE: Final = Path(__file__).with_name("units.toml")
_MOST: Final = 1e18  #: of any number of a unit
_MOST_TEXT: Final = 300  #: characters of what is wrong with a table


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of a chain: the smallest part that is assigned to a pipeline stage as a whole.

    Elements are counted for one sample, except those of parameters and buffers.
    """

    name: str
    forward_flops: float  #: of matrix products and convolutions, by torch's FlopCounterMode
    parameters: int  #: elements
    output_elements: int  #: that the next unit, or the next stage, receives
    kept_elements: int
    #: activations of this unit that are kept for the backward pass without recomputation, in
    #: multiples of four bytes in fp32. Its outputs are among them if this or the next unit keeps
    #: them; its inputs are not, which a stage that begins with the unit keeps besides
    tp_parameters: int = 0  #: of the parameters, those that tensor parallelism splits
    tp_reduced_elements: int = 0
    #: that ranks of a tp group all-reduce in the forward pass; as many in the backward pass
    begins_stage: bool = True  #: whether a stage may: its inputs are floating-point numbers
    buffers: int = 0  #: elements of running statistics: in weights and checkpoints, no gradients
    tensors: int = 0  #: that the parameters are
    low_rank_elements: int = 0  #: of the parameters' gradients as ``gradients=powersgd`` sends them
    output_channels: int = 0  #: of the outputs: ``links=int8`` sends a scale for each


@dataclass(frozen=True, slots=True)
class UnitTable:
    """The units of a task's model, in their order."""

    task: str
    units: tuple[Unit, ...]
    input_elements: int  #: of one sample, that the first unit receives

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the model."""
        return sum(unit.parameters for unit in self.units)

    @property
    def forward_flops(self) -> float:
        """Return the FLOPs of the model's forward pass on one sample."""
        return sum(unit.forward_flops for unit in self.units)

    def as_table(self) -> dict[str, object]:
        """Return the table as what JSON holds."""
        return dataclasses.asdict(self)

    @classmethod
    def from_table(cls, table: object) -> UnitTable:
        """Return the unit table that ``table``, an object of JSON, states.

        Raises:
            ValueError: naming the first key that is missing or out of bounds.
        """
        if not isinstance(table, dict):
            raise ValueError("expected an object")  # noqa: TRY004 - wrong text, not a wrong argument
        try:
            found = build(cls, table, path="unit table")
        except UserError as error:
            raise ValueError(f"{error!s:.{_MOST_TEXT}}") from error
        for unit in found.units:
            for field in dataclasses.fields(unit):
                value = getattr(unit, field.name)
                if field.name != "name" and not 0 <= value <= _MOST:
                    raise ValueError(
                        f"expected {field.name} from 0 to {_MOST:.0e} of unit {unit.name!r:.40}, "
                        f"found {value}"
                    )
        return found


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Seconds of one micro-batch on one device, without parallelism or recomputation."""

    microbatch: int  #: samples
    forward_s: tuple[float, ...]  #: by unit
    backward_s: tuple[float, ...]  #: by unit
    loss_s: float  #: of the loss with its backward pass
    update_s: tuple[float, ...]  #: by unit: its share of the optimizer's step
    stretch_of_shards: float = 1.0  #: of passes whose parameters are laid out as FSDP requires


UnitTiming: TypeAlias = Callable[[int], UnitTimes]  #: samples of a micro-batch -> times


def load_units(task_name: str) -> UnitTable:
    """Return the unit table of the suite's task ``task_name``.

    Raises:
        UserError: exit status 2 if the suite has no such task.
    """
    tables = _tables()
    if task_name not in tables:
        found = Finding(
            "projection.units",
            "the name of a task of the suite, whose units are known",
            repr(task_name),
            did_you_mean(task_name, sorted(tables), most=3) or "see hybridperf list",
        )
        raise UserError(found, ExitCode.USAGE)
    return tables[task_name]


@functools.cache
def _tables() -> dict[str, UnitTable]:
    content = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    columns = content.pop("columns")
    return {
        name: UnitTable(
            name,
            tuple(
                unit
                for row in table["units"]
                for unit in _units(dict(zip(columns, row, strict=True)))
            ),
            table["input_elements"],
        )
        for name, table in content.items()
    }


def _units(row: dict[str, Any]) -> Iterator[Unit]:
    """Yield the units of a row: one, or equal ones whose names end in a range of numbers."""
    name: str = row.pop("name")
    start, dots, last = name.rpartition("..")
    if not dots:
        yield Unit(name, **row)
        return
    prefix, _, first = start.rpartition(".")
    for number in range(int(first), int(last) + 1):
        yield Unit(f"{prefix}.{number}", **row)
