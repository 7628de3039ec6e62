"""What tensor and sequence parallelism send: bytes by pass and collective, and seconds."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.projection.collectives import all_gather, all_reduce, reduce_scatter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.link import Group
    from hybridperf.projection.units import Unit

__all__ = [
    "FLOAT_BYTES",
    "PassBytes",
    "TensorBytes",
    "computed_bytes",
    "splits_tokens",
    "tensor_parallel_bytes",
]

FLOAT_BYTES: Final = 4  #: weights, gradients and what stages send are fp32


class PassBytes(NamedTuple):
    """Bytes that a tp rank hands to collectives in a pass of a micro-batch through a unit."""

    all_reduced: float = 0.0
    scattered: float = 0.0
    gathered: float = 0.0

    @property
    def total(self) -> float:
        """Return the bytes handed to all of them."""
        return self.all_reduced + self.scattered + self.gathered

    def seconds(self, group: Group) -> float:
        """Return the seconds that the collectives take in ``group``."""
        seconds = 0.0
        if self.all_reduced:
            seconds += all_reduce(self.all_reduced, group).seconds
        if self.scattered:
            seconds += reduce_scatter(self.scattered, group).seconds
        if self.gathered:
            seconds += all_gather(self.gathered, group).seconds
        return seconds


class TensorBytes(NamedTuple):
    """What a tp rank hands to collectives for a micro-batch in a unit."""

    forward: PassBytes
    backward: PassBytes
    again: PassBytes  #: in the forward pass that recomputation repeats


_NOTHING: Final = TensorBytes(PassBytes(), PassBytes(), PassBytes())  #: of a unit that is whole


def computed_bytes(plan: PlanFields) -> int:
    """Return the bytes of a number that a pass computes; those of normalization layers are more."""
    return 2 if plan.precision in {"bf16", "fp16"} else FLOAT_BYTES


def splits_tokens(plan: PlanFields, units: Sequence[Unit], number: int) -> bool:
    """Return whether tokens are split between the units ``number`` and ``number + 1``."""
    both = 0 <= number < len(units) - 1 and units[number].tokens and units[number + 1].tokens
    return plan.sp and bool(both)


def tensor_parallel_bytes(
    plan: PlanFields,
    units: Sequence[Unit],
    number: int,
    microbatch: int,
    *,
    begins_stage: bool = False,
) -> TensorBytes:
    """Return what a tp rank hands to collectives for a micro-batch in unit ``number``.

    Outputs of row-parallel layers are summed in the forward pass, gradients of the inputs of
    column-parallel layers in the backward pass. Both become scatters with ``sp``, whose gathers are
    those of the same inputs and outputs. A unit with row-parallel layers only slices its inputs,
    and gathers their gradients.

    ``begins_stage`` says whether a stage begins with the unit, which then receives fp32.
    """
    if plan.tp == 1 or not units[number].tp_parameters:
        return _NOTHING
    before, after = splits_tokens(plan, units, number - 1), splits_tokens(plan, units, number)
    return _tensor_parallel_bytes(
        units[number],
        plan.tp if plan.sp else 0,
        computed_bytes(plan),
        microbatch,
        begins_stage,
        0 if before or not number else units[number - 1].output_elements,
        0 if after else units[number].output_elements,
    )


@functools.lru_cache(maxsize=10_000)  # a search asks for the same few, in very many plans
def _tensor_parallel_bytes(
    unit: Unit,
    token_ranks: int,
    each: int,
    microbatch: int,
    begins_stage: bool,
    entered: int,
    left: int,
) -> TensorBytes:
    """Return what `tensor_parallel_bytes` does.

    ``each`` are the bytes of a number that is computed. Tokens are split over ``token_ranks``, 0
    without ``sp``; ``entered`` and ``left`` are the elements of the unit's inputs and outputs where
    tokens begin and cease to be split.
    """
    narrow = 0 if begins_stage else unit.tp_narrow_inputs
    outputs = float(each * unit.tp_outputs * microbatch)
    again = float(each * unit.tp_outputs_again * microbatch)
    inputs = float((FLOAT_BYTES * (unit.tp_inputs - narrow) + each * narrow) * microbatch)
    if not (token_ranks and unit.tokens):
        slices = all(group.kind != "column" for group in unit.parameter_groups)
        back = PassBytes(gathered=inputs) if slices else PassBytes(all_reduced=inputs)
        return TensorBytes(PassBytes(outputs), back, PassBytes(again))
    # Parts of tokens are padded to equal sizes.
    padded = -(-unit.tokens // token_ranks) * token_ranks / unit.tokens
    outputs, again, inputs = outputs * padded, again * padded, inputs * padded
    edge = FLOAT_BYTES * microbatch * padded
    return TensorBytes(
        PassBytes(0.0, outputs, inputs + edge * left),
        PassBytes(0.0, inputs, outputs + edge * entered),
        PassBytes(0.0, again, inputs),
    )
