"""Unit tables and times for tests of projections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hybridperf.projection.network import Network, NetworkLink
from hybridperf.projection.units import Parameters, UnitCounts, UnitTable, UnitTimes

if TYPE_CHECKING:
    from hybridperf.projection.units import UnitTiming

__all__ = ["FAST", "equal_units", "plain", "tied_units", "timing_of"]

FAST = Network(8, NetworkLink(0.0, 1e30))  #: on which nothing takes time


def plain(parameters: int, *, split: int = 0, tensors: int = 1) -> tuple[Parameters, ...]:
    """Return as many ``parameters`` with a row each, of which tp splits ``split``."""
    rest = parameters - split
    columns = (Parameters("column", split, split),) if split else ()
    return (Parameters("other", rest, rest, tensors - len(columns)), *columns)


def equal_units(
    count: int, *, parameters: int = 1000, output: int = 10, kept: int = 30, split: int = 0
) -> UnitTable:
    """Return a table of equal units, ``split`` of whose parameters tp splits."""
    units = tuple(
        UnitCounts(
            f"unit.{number}",
            forward_flops=1.0,
            parameter_groups=plain(parameters, split=split, tensors=2),
            output_elements=output,
            kept_elements=kept,
            tp_outputs=2 * output if split else 0,
            tp_outputs_again=output if split else 0,
            tp_inputs=2 * output if split else 0,
            tokens=5 if split else 0,
            low_rank_elements=parameters // 10,
            output_channels=output // 5,
        )
        for number in range(count)
    )
    return UnitTable("test/equal", units, input_elements=output)


def tied_units(count: int, sharing: tuple[int, ...], *, shared: int) -> UnitTable:
    """Return a table of equal units, of which those ``sharing`` have ``shared`` parameters more."""
    table = equal_units(count)
    group = Parameters("other", shared, shared, shared="unit.0.weight")
    units = (
        replace(unit, parameter_groups=(*unit.parameter_groups, group), low_rank_elements=800)
        if number in sharing
        else unit
        for number, unit in enumerate(table.units)
    )
    return replace(table, units=tuple(units))


def timing_of(
    table: UnitTable, forward_s: float = 1.0, backward_s: float = 2.0, update_s: float = 0.0
) -> UnitTiming:
    """Return times of equal units, the same for a micro-batch of any size."""
    count = len(table.units)

    def times(microbatch: int) -> UnitTimes:
        return UnitTimes(
            microbatch, (forward_s,) * count, (backward_s,) * count, 0.0, (update_s,) * count
        )

    return times
