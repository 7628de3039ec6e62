"""Unit tables: FLOPs, parameters and activations by task; and unit times on one device."""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.spelling import did_you_mean
from hybridperf.tasks.schema import build
from hybridperf.untrusted import COUNT_CAP

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MOST_S",
    "ParameterKind",
    "Parameters",
    "Seconds",
    "UnitCounts",
    "UnitTable",
    "UnitTimes",
    "UnitTiming",
    "load_units",
    "unit_columns",
    "without_repeats",
]

_FILE: Final = Path(__file__).with_name("units.toml")
_MOST: Final = 1e18  #: bound on all numbers of a unit
MOST_S: Final = 10**6  #: bound on all times of a profile
_MOST_TEXT: Final = 300  #: bound on the characters of an error message


Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=MOST_S)]
ParameterKind: TypeAlias = Literal[
    "column", "column_bias", "row", "row_bias", "normalization", "other"
]
#: weights and biases of column-parallel and of row-parallel layers; of normalization layers


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a unit that are of one kind and have equally many rows."""

    kind: ParameterKind
    rows: int  #: size of the first dimension of each; 0: numbers, which have none
    elements: int  #: of all of them
    tensors: int = 1
    shared: str = ""  #: global name of the parameter, a group by itself, if other units have it too


@dataclass(frozen=True, slots=True)
class UnitCounts:
    """Counts of a unit of a chain, the smallest part that is assigned to a pipeline stage.

    Elements are counted for one sample, except elements of parameters and buffers.
    """

    name: str
    forward_flops: float  #: FLOPs of matrix products and convolutions (torch's FlopCounterMode)
    parameter_groups: tuple[Parameters, ...]
    output_elements: int  #: elements that the next unit, or the next stage, receives
    kept_elements: int
    #: activations of this unit that are kept for the backward pass without recomputation, in
    #: multiples of four bytes in fp32. Its outputs are among them if this or the next unit keeps
    #: them; its inputs are not, which a stage that begins with the unit keeps besides
    tp_outputs: int = 0  #: elements of the outputs of row-parallel layers
    tp_outputs_again: int = 0  #: elements of `tp_outputs` that recomputation computes again
    tp_inputs: int = 0
    #: inputs of column-parallel layers, in elements, once for layers of one module; inputs of
    #: row-parallel layers for a unit without column-parallel layers
    tp_narrow_inputs: int = 0
    #: elements of `tp_inputs` that are in bf16 or fp16 under that precision, inside a stage
    tokens: int = 0  #: tokens of a sample, if sequence parallelism splits them here
    begins_stage: bool = True  #: whether a stage may begin here: inputs are floating-point numbers
    buffers: int = 0  #: elements of running statistics: in weights and checkpoints, no gradients
    low_rank_elements: int = 0  #: elements of gradients as ``gradients=powersgd`` sends them
    output_channels: int = 0  #: channels of the outputs: ``links=int8`` sends a scale for each
    batch_norm_channels: int = 0  #: channels of the inputs of all BatchNorm layers
    is_narrow: bool = False  #: whether autocast computes all but normalization in bf16 or fp16
    parameters: int = field(init=False, compare=False)  #: elements
    tp_parameters: int = field(init=False, compare=False)
    #: of the parameters, those that tensor parallelism splits
    tensors: int = field(init=False, compare=False)  #: that the parameters are
    shared: frozenset[str] = field(init=False, compare=False)
    #: global names of the parameters that other units have too

    def __post_init__(self) -> None:
        groups = self.parameter_groups
        split = [group.elements for group in groups if group.kind in _SPLIT]
        object.__setattr__(self, "parameters", sum(group.elements for group in groups))
        object.__setattr__(self, "tp_parameters", sum(split))
        object.__setattr__(self, "tensors", sum(group.tensors for group in groups))
        shared = frozenset(group.shared for group in groups if group.shared)
        object.__setattr__(self, "shared", shared)

    def __hash__(self) -> int:
        """Return the hash of the name: searches look units up by the hundred thousand."""
        return hash(self.name)


_SPLIT: Final = (
    "column",
    "column_bias",
    "row",
)  #: kinds of parameters of which each tp rank has a part
_LOW_RANK: Final = 4  #: rank of the factors that ``gradients=powersgd`` sends


def without_repeats(units: Sequence[UnitCounts]) -> list[UnitCounts]:
    """Return ``units``, of one stage, with each shared parameter in the first that has it only."""
    seen, found = frozenset[str](), list[UnitCounts]()
    for unit in units:
        found.append(_without(unit, repeated) if (repeated := unit.shared & seen) else unit)
        seen |= unit.shared
    return found


@functools.lru_cache(maxsize=1000)  # a search asks for the same few, in very many plans
def _without(unit: UnitCounts, names: frozenset[str]) -> UnitCounts:
    """Return ``unit`` without the parameters of these global names."""
    dropped = [group for group in unit.parameter_groups if group.shared in names]
    return dataclasses.replace(
        unit,
        parameter_groups=tuple(g for g in unit.parameter_groups if g.shared not in names),
        low_rank_elements=unit.low_rank_elements - sum(map(_low_rank_elements, dropped)),
    )


def _low_rank_elements(group: Parameters) -> int:
    """Return the elements that ``gradients=powersgd`` sends of a group of one parameter."""
    if not group.rows:
        return group.elements
    return min(_LOW_RANK * (group.rows + group.elements // group.rows), group.elements)


@dataclass(frozen=True, slots=True)
class UnitTable:
    """The units of a task's model, in their order."""

    task: str
    units: tuple[UnitCounts, ...]
    input_elements: int  #: elements of one sample that the first unit receives

    @property
    def parameters(self) -> int:
        """Return the number of parameters of the model, each counted once."""
        return sum(unit.parameters for unit in without_repeats(self.units))

    @property
    def forward_flops(self) -> float:
        """Return the FLOPs of the model's forward pass on one sample."""
        return sum(unit.forward_flops for unit in self.units)

    def as_table(self) -> dict[str, object]:
        """Return the table as what JSON holds."""
        table = dataclasses.asdict(self)
        for unit in table["units"]:
            for name in unit.keys() - set(unit_columns()):
                del unit[name]
        return table

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
            _check_bounds(unit, unit.name)
            for group in unit.parameter_groups:
                _check_bounds(group, unit.name)
                if group.rows and group.elements % group.rows:
                    raise ValueError(
                        f"expected elements that {group.rows} rows divide of the {group.kind} "
                        f"parameters of unit {unit.name!r:.40}, found {group.elements}"
                    )
        return found


def _check_bounds(part: UnitCounts | Parameters, name: str) -> None:
    """Refuse the first number of ``part``, of the unit ``name``, that is negative or too large."""
    for each in dataclasses.fields(part):
        value = getattr(part, each.name)
        if each.init and isinstance(value, int | float) and not 0 <= value <= _MOST:
            raise ValueError(
                f"expected {each.name} from 0 to {_MOST:.0e} of unit {name!r:.40}, found {value}"
            )


def unit_columns() -> list[str]:
    """Return the names of what a table states of each unit."""
    return [each.name for each in dataclasses.fields(UnitCounts) if each.init]


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Seconds of one micro-batch on one device, without parallelism or recomputation."""

    microbatch: Annotated[int, msgspec.Meta(ge=1, le=COUNT_CAP)]  #: samples
    forward_s: tuple[Seconds, ...]  #: forward pass by unit
    backward_s: tuple[Seconds, ...]  #: backward pass by unit
    loss_s: Seconds  #: loss with its backward pass
    update_s: tuple[Seconds, ...]  #: share of the optimizer's step by unit
    codec_byte_s: Seconds = 0.0  #: byte that compression reads or writes; 0 in a profile
    codec_flop_s: Seconds = 0.0  #: FLOP of compression; 0 in a profile


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


def _units(row: dict[str, Any]) -> Iterator[UnitCounts]:
    """Yield the units of a row: one, or equal ones whose names end in a range of numbers."""
    name: str = row.pop("name")
    row["parameter_groups"] = tuple(Parameters(*group) for group in row["parameter_groups"])
    start, dots, last = name.rpartition("..")
    if not dots:
        yield UnitCounts(name, **row)
        return
    prefix, _, first = start.rpartition(".")
    for number in range(int(first), int(last) + 1):
        yield UnitCounts(f"{prefix}.{number}", **row)
