"""Exchanges: bytes of the ranks that share a sample, in a pass of a micro-batch through a unit.

Of tensor parallelism in one dimension (``tp``, ``sp``) or several (``tensor``), and of the ring of
context parallelism (``cp``).
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.projection.network import all_gather, all_reduce, reduce_scatter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.network import RankGroup
    from hybridperf.projection.units import Parameters, UnitCounts

__all__ = [
    "FLOAT_BYTES",
    "ContextBytes",
    "PassBytes",
    "RingBytes",
    "TensorBytes",
    "arranged_gradient_bytes",
    "arranged_parts",
    "arranged_tensor_bytes",
    "computed_bytes",
    "context_parallel_bytes",
    "splits_tokens",
    "tensor_parallel_bytes",
]

FLOAT_BYTES: Final = 4  #: weights, gradients and messages between stages are fp32


class PassBytes(NamedTuple):
    """Bytes that a tp rank hands to collectives in a pass of a micro-batch through a unit."""

    all_reduced: float = 0.0
    scattered: float = 0.0
    gathered: float = 0.0

    @property
    def total(self) -> float:
        """Return the bytes handed to all of them."""
        return self.all_reduced + self.scattered + self.gathered

    def seconds(self, group: RankGroup) -> float:
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
    """Return the bytes of an element that a pass computes, normalization layers excepted."""
    return 2 if plan.precision in {"bf16", "fp16"} else FLOAT_BYTES


def splits_tokens(plan: PlanFields, units: Sequence[UnitCounts], number: int) -> bool:
    """Return whether ``sp`` or ``cp`` splits tokens between units ``number`` and ``number + 1``."""
    both = 0 <= number < len(units) - 1 and units[number].tokens and units[number + 1].tokens
    return (plan.sp or plan.cp > 1) and bool(both)


class RingBytes(NamedTuple):
    """Bytes of a cp rank in a pass of a micro-batch through a unit."""

    ring: float = 0.0
    #: bytes sent to the next rank in ring messages, whose number `ContextBytes` states; ranks' mean
    gathered: float = 0.0  #: bytes of all parts of tokens together, handed to an all-gather

    @property
    def total(self) -> float:
        """Return the bytes sent and handed over."""
        return self.ring + self.gathered


class ContextBytes(NamedTuple):
    """Bytes of a cp rank for a micro-batch in a unit, by pass.

    A ring of c ranks sends c - 1 messages in a forward pass, keys and values together, each
    overlapped with the attention to the part received before; in a backward pass it sends c - 1
    such messages, overlapped likewise, and c messages of gradients in fp32, each after the products
    that it depends on.
    """

    forward: RingBytes
    backward: RingBytes
    again: RingBytes  #: in the forward pass that recomputation repeats: without the all-gathers


def context_parallel_bytes(
    plan: PlanFields, units: Sequence[UnitCounts], number: int, microbatch: int
) -> ContextBytes:
    """Return the context-parallel traffic of a rank for a micro-batch in unit ``number``.

    Keys and values go round in the ring of attention, and have as many elements each as the unit's
    outputs; under ``tp`` a rank has its own heads'. Where tokens cease to be split, outputs are
    gathered in the forward pass; where they begin to be, gradients of inputs in the backward pass.
    Sums of gradients over cp, once a step, are `token_gradient_bytes`.
    """
    unit, ranks = units[number], plan.cp
    if ranks == 1 or not unit.tokens:
        return ContextBytes(RingBytes(), RingBytes(), RingBytes())
    whole = 2 * unit.output_elements * microbatch / plan.tp  # keys and values of all tokens
    keys_and_values = computed_bytes(plan) * whole * (ranks - 1) / ranks
    # Parts of tokens are padded to equal sizes.
    edge = FLOAT_BYTES * microbatch * -(-unit.tokens // ranks) * ranks / unit.tokens
    before, after = splits_tokens(plan, units, number - 1), splits_tokens(plan, units, number)
    entered = 0 if before or not number else units[number - 1].output_elements
    left = 0 if after else unit.output_elements
    return ContextBytes(
        RingBytes(keys_and_values, edge * left),
        RingBytes(keys_and_values + FLOAT_BYTES * whole, edge * entered),
        RingBytes(keys_and_values),
    )


def tensor_parallel_bytes(
    plan: PlanFields,
    units: Sequence[UnitCounts],
    number: int,
    microbatch: int,
    *,
    begins_stage: bool = False,
) -> TensorBytes:
    """Return the tensor-parallel traffic of a rank for a micro-batch in unit ``number``.

    Outputs of row-parallel layers are summed in the forward pass, gradients of the inputs of
    column-parallel layers in the backward pass. With ``sp`` both become scatters, and the same
    inputs and outputs are gathered. A unit with row-parallel layers only slices its inputs,
    and gathers their gradients.

    ``begins_stage`` says whether a stage begins with the unit, which then receives fp32.
    """
    if plan.tp == 1 or not units[number].tp_parameters:
        return _NOTHING
    before, after = splits_tokens(plan, units, number - 1), splits_tokens(plan, units, number)
    return _tensor_parallel_bytes(
        units[number],
        plan.tp if plan.sp else 0,
        plan.cp if units[number].tokens else 1,
        computed_bytes(plan),
        microbatch,
        begins_stage,
        0 if before or not number else units[number - 1].output_elements,
        0 if after else units[number].output_elements,
    )


@functools.lru_cache(maxsize=10_000)  # a search asks for the same few, in very many plans
def _tensor_parallel_bytes(
    unit: UnitCounts,
    token_ranks: int,
    cp: int,
    each: int,
    microbatch: int,
    begins_stage: bool,
    entered: int,
    left: int,
) -> TensorBytes:
    """Compute `tensor_parallel_bytes` from hashable arguments, for the cache.

    ``each`` are the bytes of a number that is computed. Tokens are split over ``token_ranks``, 0
    without ``sp``; ``entered`` and ``left`` are the elements of the unit's inputs and outputs where
    tokens begin and cease to be split. Of ``cp`` ranks each has its own tokens.
    """
    narrow = 0 if begins_stage else unit.tp_narrow_inputs
    outputs = each * unit.tp_outputs * microbatch / cp
    again = each * unit.tp_outputs_again * microbatch / cp
    inputs = (FLOAT_BYTES * (unit.tp_inputs - narrow) + each * narrow) * microbatch / cp
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


def arranged_tensor_bytes(
    plan: PlanFields, units: Sequence[UnitCounts], number: int, microbatch: int
) -> Mapping[str, TensorBytes]:
    """Return the traffic of a rank for a micro-batch in unit ``number``, by axis of `tensor_axes`.

    Empty for a unit that is whole, as units without column- and row-parallel layers are. A linear
    layer of k features to n, for m tokens in all, gathers in the forward pass and reduces and
    scatters the gradients in the backward pass, with a side of q:

    - 2d (Xu et al. 2021): inputs [m/q, k] over j, weights [k, n/q] over i;
    - 2.5d (Wang et al. 2022), depth d: the same with m/d tokens;
    - 3d (Bian et al. 2021): inputs [m/q, k/q] over j, weights [k/q, n/q] over i; outputs
      [m/q, n/q] are scattered over k, and their gradients gathered. j and k alternate.

    The layers of one module share the gathered inputs. A normalization layer gathers two fp32
    statistics of each token over the axis of the hidden features, and adds two up in the backward
    pass. A region of adjacent such units ends with a gather of its outputs over all ranks (axis
    ``tp``); gradients of its inputs are gathered likewise.
    """
    unit = units[number]
    if plan.tensor == "1d" or not unit.tokens:
        return {}
    begins = number > 0 and not units[number - 1].tokens
    ends = number + 1 == len(units) or not units[number + 1].tokens
    return _arranged_tensor_bytes(
        unit,
        tuple(plan.tensor_axes.items()),
        plan.tensor_hidden_axis,
        microbatch // plan.batch_parts,
        computed_bytes(plan),
        FLOAT_BYTES * microbatch * units[number - 1].output_elements if begins else 0,
        FLOAT_BYTES * microbatch * unit.output_elements if ends else 0,
    )


@functools.lru_cache(maxsize=10_000)  # a search asks for the same few, in very many plans
def _arranged_tensor_bytes(
    unit: UnitCounts,
    arrangement: tuple[tuple[str, int], ...],
    hidden_axis: str,
    samples: int,
    each: int,
    entered: int,
    left: int,
) -> Mapping[str, TensorBytes]:
    """Compute `arranged_tensor_bytes` from hashable arguments, for the cache.

    ``each`` is the size of a computed number in bytes, and ``samples`` the rank's share of the
    micro-batch; ``entered`` and ``left`` are the bytes of the inputs and outputs of a region that
    begins or ends with the unit.
    """
    axes = dict(arrangement)
    side, groups = axes["j"], unit.parameter_groups
    columns = [group for group in groups if group.kind == "column"]
    rows = [group for group in groups if group.kind == "row"]
    inputs = float(each * samples * unit.tp_inputs)  # with all of their features
    between = float(each * samples * unit.tokens * sum(g.elements // g.rows for g in rows))
    weights = float(each * sum(group.elements for group in (*columns, *rows)))
    norms = sum(group.tensors for group in groups if group.kind == "normalization") // 2
    statistics = float(FLOAT_BYTES * 2 * norms * unit.tokens * samples)
    found: dict[str, TensorBytes] = {}

    def add(
        axis: str, *, gathered: float = 0, scattered: float = 0, again: float | None = None
    ) -> None:
        """Add what a forward pass gathers or scatters; a backward pass does the reverse."""
        own, back, repeated = found.get(axis, _NOTHING)
        repeats = scattered if again is None else again
        found[axis] = TensorBytes(
            PassBytes(0.0, own.scattered + scattered, own.gathered + gathered),
            PassBytes(0.0, back.scattered + gathered, back.gathered + scattered),
            PassBytes(0.0, repeated.scattered + repeats, repeated.gathered + gathered),
        )

    if "k" in axes:
        # Of j parts of the samples k / j are gathered in turn, with a part of the features.
        outputs = float(each * samples * unit.tokens * sum(g.rows * g.tensors for g in columns))
        add("j", gathered=inputs)
        add("k", scattered=outputs)
        add("k", gathered=between)
        last, again = (float(each * samples * n) for n in (unit.tp_outputs, unit.tp_outputs_again))
        add("j", scattered=last, again=again)
        add("i", gathered=weights / side**2)
    else:
        add("j", gathered=inputs + between)
        add("i", gathered=weights / side)
    forward, backward, repeated = found[hidden_axis]
    found[hidden_axis] = TensorBytes(
        forward._replace(gathered=forward.gathered + side * statistics),
        backward._replace(all_reduced=statistics),
        repeated._replace(gathered=repeated.gathered + side * statistics),
    )
    if entered or left:
        found["tp"] = TensorBytes(
            PassBytes(gathered=float(left)), PassBytes(gathered=float(entered)), PassBytes()
        )
    return found


def arranged_gradient_bytes(plan: PlanFields, unit: UnitCounts) -> Mapping[str, float]:
    """Return the bytes of gradients of ``unit`` that a rank adds up in a step, by axis.

    The parameters are those with copies on several ranks that compute with other samples: biases
    and normalization layers, and under 2.5d the weights.
    """
    if plan.tensor == "1d" or not unit.tokens:
        return {}
    axes, elements = plan.tensor_axes, dict.fromkeys(plan.tensor_axes, 0.0)
    for group in unit.parameter_groups:
        for axis in _copying_axes(plan, group):
            elements[axis] += group.elements / arranged_parts(plan, group)
    return {axis: FLOAT_BYTES * elements[axis] for axis in axes if elements[axis]}


def _copying_axes(plan: PlanFields, group: Parameters) -> list[str]:
    """Return the axes of `tensor_axes` whose ranks hold the same parameters of ``group``."""
    if group.kind in {"column", "row"}:
        return ["e"] if plan.tensor == "2.5d" else []
    features = "j" if group.kind == "column_bias" else plan.tensor_hidden_axis
    return [axis for axis in plan.tensor_axes if axis != features]


def arranged_parts(plan: PlanFields, group: Parameters) -> int:
    """Return the number of parts into which `tensor` splits the parameters of ``group``."""
    copying = _copying_axes(plan, group)
    return math.prod(size for axis, size in plan.tensor_axes.items() if axis not in copying)
