"""Traffic: places of units, and bytes of sends and collectives in a step, by kind.

Includes the cost of compression on devices without measured codecs: memory traffic and FLOPs.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan.fields import FIELDS
from hybridperf.plan.schedules import SCHEDULES, ActionKind
from hybridperf.projection.network import all_gather, all_reduce, reduce_scatter
from hybridperf.projection.units import without_repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.network import Network, RankGroup
    from hybridperf.projection.units import Parameters, UnitCounts, UnitTable, UnitTimes

__all__ = [
    "FLOAT_BYTES",
    "GRADIENT_BYTES",
    "LINK_CODEC_BYTES",
    "ContextBytes",
    "LinkCodecBytes",
    "PassBytes",
    "RingBytes",
    "Stages",
    "TensorBytes",
    "arranged_gradient_bytes",
    "arranged_tensor_bytes",
    "axis_stride",
    "computed_bytes",
    "context_parallel_bytes",
    "gathered_bytes",
    "gradient_bytes",
    "gradient_compression_s",
    "held_parameters",
    "link_codec_s",
    "message_bytes",
    "parameter_bytes",
    "parameter_gathers",
    "prefetched_bytes",
    "replicated_bytes",
    "sent_bytes",
    "sharded_elements",
    "shared_elements",
    "shared_sums",
    "splits_tokens",
    "tensor_parallel_bytes",
    "token_gradient_bytes",
]


class Stages:
    """The stages of ``plan``; ``cuts`` are the first units of all stages after the first.

    Raises:
        ValueError: if there are not as many stages as the plan has, each with a unit.
    """

    def __init__(self, plan: ParallelPlan, table: UnitTable, cuts: Sequence[int]) -> None:
        bounds = [0, *cuts, len(table.units)]
        if len(bounds) != plan.pipeline_stages + 1 or any(a >= b for a, b in pairwise(bounds)):
            raise ValueError(
                f"plan '{plan}' has {plan.pipeline_stages} stages of {len(table.units)} units, "
                f"not those cut at {list(cuts)}"
            )
        self.plan = plan
        self.units = [range(first, stop) for first, stop in pairwise(bounds)]  #: by stage
        self.alone = table.units  #: each unit as it would be in a stage of its own
        if any(unit.shared for unit in table.units):
            parts = (table.units[first:stop] for first, stop in pairwise(bounds))
            table = replace(table, units=tuple(u for part in parts for u in without_repeats(part)))
        self.table = table  #: in which each stage has a parameter that its units share once
        self.rank_of = {
            stage: rank for rank in range(plan.pp) for stage in plan.stages_of(rank)
        }  #: of the pipeline, by stage
        every = plan.recompute
        self.recomputed = {
            number
            for rank in range(plan.pp)
            for number in (self.units_of(rank)[::every] if every else ())
        }  #: units whose activations are computed again

    def units_of(self, rank: int) -> list[int]:
        """Return the indices of the units that a rank of the pipeline holds."""
        return [number for stage in self.plan.stages_of(rank) for number in self.units[stage]]

    def replica_groups(self, network: Network) -> tuple[RankGroup, RankGroup]:
        """Return the sharding group, and the group of its replicas."""
        plan, stride = self.plan, axis_stride(self.plan, "dp")
        return (
            network.group(plan.shards, stride),
            network.group(plan.dp // plan.shards, stride * plan.shards),
        )


def axis_stride(plan: PlanFields, axis: str) -> int:
    """Return how far apart the global ranks of neighbours on ``axis`` of ``plan`` are."""
    inwards = plan.order.replace("tp", "cp-tp").split("-")  # tp ranks of one cp rank are neighbours
    return math.prod(getattr(plan, inner) for inner in inwards[inwards.index(axis) + 1 :])


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
    """Return what `tensor_parallel_bytes` does.

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
    """Return what `arranged_tensor_bytes` does, for a rank's ``samples`` of a micro-batch.

    ``each`` are the bytes of a number that is computed, ``entered`` and ``left`` of the inputs and
    outputs of a region that begins or ends with the unit.
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

    These are the gradients of what several ranks of `tensor_axes` hold and compute with other
    samples: biases and normalization layers, and under 2.5d the weights.
    """
    if plan.tensor == "1d" or not unit.tokens:
        return {}
    axes, elements = plan.tensor_axes, dict.fromkeys(plan.tensor_axes, 0.0)
    for group in unit.parameter_groups:
        for axis in _copying_axes(plan, group):
            elements[axis] += group.elements / _arranged_parts(plan, group)
    return {axis: FLOAT_BYTES * elements[axis] for axis in axes if elements[axis]}


def _copying_axes(plan: PlanFields, group: Parameters) -> list[str]:
    """Return the axes of `tensor_axes` whose ranks hold the same parameters of ``group``."""
    if group.kind in {"column", "row"}:
        return ["e"] if plan.tensor == "2.5d" else []
    features = "j" if group.kind == "column_bias" else plan.tensor_hidden_axis
    return [axis for axis in plan.tensor_axes if axis != features]


def _arranged_parts(plan: PlanFields, group: Parameters) -> int:
    """Return the number of parts into which `tensor` splits the parameters of ``group``."""
    copying = _copying_axes(plan, group)
    return math.prod(size for axis, size in plan.tensor_axes.items() if axis not in copying)


_KEPT_SHARE: Final = 10  #: ``links=topk`` sends one value in ten, with its index


#: bytes of a message by the plan's ``links``: f(elements, channels)
_CODED_BYTES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "none": lambda elements, _: FLOAT_BYTES * elements,
    "bf16": lambda elements, _: 2 * elements,
    "int8": lambda elements, channels: elements + FLOAT_BYTES * channels,
    "topk": lambda elements, _: 2 * FLOAT_BYTES * max(1, elements // _KEPT_SHARE),
}


def message_bytes(
    plan: PlanFields, units: Sequence[UnitCounts], number: int, microbatch: int, part: int = 0
) -> int:
    """Return the bytes of a message with the outputs of unit ``number``, or with their gradient.

    With ``sp`` or ``cp`` a rank sends its own ``part`` of the tokens only; part 0 has the most.
    """
    unit = units[number]
    elements = unit.output_elements
    if plan.tensor != "1d" and unit.tokens and units[number + 1].tokens:
        elements //= plan.batch_parts * plan.tensor_axes[plan.tensor_hidden_axis]
    if splits_tokens(plan, units, number):
        most = -(-unit.tokens // (plan.cp if plan.cp > 1 else plan.tp))
        own = min(most, max(0, unit.tokens - part * most))
        elements = elements // unit.tokens * own
    return _CODED_BYTES[plan.links](elements * microbatch, unit.output_channels)


def held_parameters(plan: PlanFields, unit: UnitCounts) -> float:
    """Return the parameters of ``unit`` on each rank of a tp group, before sharding."""
    if plan.tensor != "1d":
        groups = unit.parameter_groups if unit.tokens else ()
        split = sum(group.elements for group in groups)
        parts = sum(group.elements / _arranged_parts(plan, group) for group in groups)
        return unit.parameters - split + parts
    return unit.parameters - unit.tp_parameters + unit.tp_parameters / plan.tp


def gradient_bytes(plan: PlanFields, unit: UnitCounts) -> float:
    """Return the bytes of the gradients of ``unit`` that a replica averages with the others.

    With ``zero`` they are those that are scattered, with their padding.
    """
    each = _averaged_bytes(plan)
    if plan.zero:
        return each * _sharded_elements(unit, plan.tp, plan.shards, _leaves_normalization(plan))
    if plan.gradients == "powersgd":
        return float(FLOAT_BYTES * unit.low_rank_elements)
    return each * held_parameters(plan, unit)


def _averaged_bytes(plan: PlanFields) -> int:
    """Return the bytes of a number of a gradient that replicas average."""
    return 2 if plan.gradients == "bf16" else FLOAT_BYTES


def replicated_bytes(plan: PlanFields, unit: UnitCounts) -> int:
    """Return the bytes of those gradients of ``unit`` that replicas average though they shard."""
    if not plan.zero:
        return 0
    return _averaged_bytes(plan) * _replicated_elements(unit, _leaves_normalization(plan))


def _leaves_normalization(plan: PlanFields) -> bool:
    """Return whether normalization layers of units that are computed narrow are not sharded."""
    return gathered_bytes(plan) < FLOAT_BYTES


@functools.lru_cache(maxsize=10_000)  # a search asks for the same few, in very many plans
def _sharded_elements(unit: UnitCounts, tp: int, shards: int, leaves_normalization: bool) -> int:
    """Return the elements of all shards of ``unit``, on one rank of a tp group.

    FSDP pads the rows of each parameter so that ``shards`` divide them.
    """
    elements = 0
    for group in unit.parameter_groups:
        if _is_replicated(group, unit, leaves_normalization):
            continue
        rows = -(-group.rows // tp) if group.kind in _OF_COLUMNS else group.rows
        of_a_row = group.elements // group.rows
        if group.kind == "row":
            of_a_row //= tp
        elements += -(-rows // shards) * shards * of_a_row
    return elements


_OF_COLUMNS: Final = ("column", "column_bias")


@functools.lru_cache(maxsize=10_000)
def _replicated_elements(unit: UnitCounts, leaves_normalization: bool) -> int:
    """Return the elements of the parameters of ``unit`` that are not sharded."""
    return sum(
        group.elements
        for group in unit.parameter_groups
        if _is_replicated(group, unit, leaves_normalization)
    )


def _is_replicated(group: Parameters, unit: UnitCounts, leaves_normalization: bool) -> bool:
    normalizes = group.kind == "normalization" and unit.is_narrow
    return not group.rows or bool(group.shared) or (leaves_normalization and normalizes)


def shared_elements(unit: UnitCounts) -> int:
    """Return the elements of the parameters of ``unit`` that other units have too."""
    return sum(group.elements for group in unit.parameter_groups if group.shared)


def shared_sums(stages: Stages) -> list[tuple[int, list[int]]]:
    """Return the sums of gradients over the copies of shared parameters, one for each parameter.

    Each is of so many bytes on each of several ranks of the pipeline, of which each has copies.
    """
    places: dict[str, tuple[int, set[int]]] = {}
    for stage, numbers in enumerate(stages.units):
        for number in numbers:
            unit = stages.table.units[number]
            for group in unit.parameter_groups if unit.shared else ():
                if group.shared:
                    size = FLOAT_BYTES * group.elements
                    _, ranks = places.setdefault(group.shared, (size, set()))
                    ranks.add(stages.rank_of[stage])
    return [(size, sorted(ranks)) for size, ranks in places.values() if len(ranks) > 1]


def parameter_gathers(plan: PlanFields, rank: int) -> tuple[int, ...]:
    """Return how often in a step a rank of the pipeline gathers parameters, by its stages.

    ``zero=1`` keeps them for a step and ``zero=2`` for a micro-batch. ``zero=3`` gathers them for
    each pass; in a pipeline they stay after a backward pass, until the next forward pass is over.
    """
    own = plan.stages_of(rank)
    if plan.zero < 3 or plan.pipeline is None:
        often = (0, 1, plan.microbatches, 2 * plan.microbatches)[plan.zero]
        return (often,) * len(own)
    assert plan.schedule is not None, "a pipeline has one"
    return _gathers(plan.schedule, plan.pp, plan.stages, plan.microbatches, rank)


@functools.lru_cache(maxsize=1000)
def _gathers(
    schedule: str, ranks: int, stages: int, microbatches: int, rank: int
) -> tuple[int, ...]:
    """Return how often each stage of ``rank`` is gathered whose forward passes release it."""
    pipeline = SCHEDULES[schedule]
    counts = dict.fromkeys(pipeline.placement(rank, ranks, stages), 0)
    whole = set[int]()
    for kind, stage, _ in pipeline.order(rank, ranks, stages, microbatches):
        counts[stage] += stage not in whole
        if kind is ActionKind.FORWARD:
            whole.discard(stage)
        else:
            whole.add(stage)
    return tuple(counts.values())


def parameter_bytes(plan: PlanFields, unit: UnitCounts) -> int:
    """Return the bytes of the parameters of ``unit`` in the form in which they are gathered.

    Units that autocast does not compute narrow, such as embeddings, are gathered in fp32.
    """
    each = gathered_bytes(plan) if unit.is_narrow else FLOAT_BYTES
    return each * _sharded_elements(unit, plan.tp, plan.shards, _leaves_normalization(plan))


def prefetched_bytes(plan: PlanFields, units: Sequence[UnitCounts]) -> int:
    """Return the bytes that FSDP prefetches at the end of a backward pass, and does not use.

    The prefetch mistakes the last unit for the next one, because it preceded the first unit in the
    previous micro-batch. In a pipeline, FSDP prefetches nothing.
    """
    if not plan.zero or plan.pp > 1:
        return 0
    sizes = [size for unit in units if (size := parameter_bytes(plan, unit))]
    return sizes[-1] if len(sizes) > 1 else 0


def gathered_bytes(plan: PlanFields) -> int:
    """Return the bytes of a parameter as it is gathered, if autocast computes with it."""
    return computed_bytes(plan) if plan.offload == "none" else FLOAT_BYTES


def sharded_elements(plan: PlanFields, parameters: float) -> float:
    """Return the elements of a shard of ``parameters`` on the device: none if it is offloaded."""
    return parameters / plan.shards if plan.offload == "none" else 0.0


def token_gradient_bytes(plan: PlanFields, unit: UnitCounts) -> float:
    """Return the bytes of the gradients of ``unit`` that ranks with other tokens add up.

    In the mean of replicas, of which those that shard add up a part each. These are the gradients
    of the parameters of which each rank has seen only its own tokens: under ``cp`` of all, under
    ``sp`` of those that tensor parallelism does not split.
    """
    if not ((plan.sp or plan.cp > 1) and unit.tokens):
        return 0.0
    elements = 0.0
    for group in unit.parameter_groups:
        if plan.sp and group.kind in _OF_SPLIT_LAYERS:
            continue
        replicated = _is_replicated(group, unit, _leaves_normalization(plan))
        ranks = plan.tp if group.kind in _SPLIT else 1
        elements += group.elements / ranks / (1 if replicated else plan.shards)
    return FLOAT_BYTES * elements


_SPLIT: Final = (*_OF_COLUMNS, "row")  # of which each tp rank has a part
_OF_SPLIT_LAYERS: Final = (*_SPLIT, "row_bias")  # whose gradients are whole under ``sp``


def sent_bytes(stages: Stages, microbatch: int) -> dict[str, float]:
    """Return the bytes that all ranks hand to sends and collectives in a step, by kind.

    ``activations`` and ``activation_gradients`` cross from stage to stage, ``gradients`` are
    averaged over replicas, ``parameters`` gathered from shards, ``statistics`` are BatchNorm's over
    all replicas, ``tensor_parallel`` is the traffic of tp groups, ``context_parallel`` the traffic
    of cp groups, and ``shared_gradients`` are added up over the stages that have copies of a
    parameter. The bytes on a link follow from `hybridperf.projection.network`.
    """
    plan, units = stages.plan, stages.table.units
    every = plan.dp * plan.cp * plan.tp
    ranks = list(itertools.product(range(plan.cp), range(plan.tp)))  # of a stage
    messages = (
        plan.dp
        * plan.microbatches
        * sum(
            message_bytes(plan, units, stages.units[stage][-1], microbatch, part)
            for stage in range(len(stages.units) - 1)
            if stages.rank_of[stage] != stages.rank_of[stage + 1]
            for part in (cp_rank if plan.cp > 1 else tp_rank for cp_rank, tp_rank in ranks)
        )
    )
    sent: dict[str, float] = {
        "activations": messages,
        "activation_gradients": messages,
        "gradients": every * _averaged_in_all(stages) if plan.dp > 1 else 0.0,
        "parameters": every * _gathered_in_all(stages),
        "statistics": every
        * plan.microbatches
        * sum(_statistic_bytes(stages, number) for number in range(len(units))),
        "tensor_parallel": every
        * sum(
            plan.microbatches * _tensor_bytes_of_passes(stages, number, microbatch)
            + (token_gradient_bytes(plan, unit) if plan.sp else 0.0)
            + sum(arranged_gradient_bytes(plan, unit).values())
            for number, unit in enumerate(units)
        ),
        "context_parallel": every
        * sum(
            plan.microbatches * _context_bytes_of_passes(stages, number, microbatch)
            + (token_gradient_bytes(plan, unit) if plan.cp > 1 else 0.0)
            for number, unit in enumerate(units)
        ),
        "shared_gradients": every * sum(size * len(ranks) for size, ranks in shared_sums(stages)),
    }
    return {kind: count for kind, count in sent.items() if count}


def _gathered_in_all(stages: Stages) -> int:
    """Return the bytes of parameters that a pipeline of ranks gathers in a step."""
    plan, units = stages.plan, stages.table.units
    gathered = sum(
        often * parameter_bytes(plan, units[number])
        for rank in range(plan.pp)
        for stage, often in zip(plan.stages_of(rank), parameter_gathers(plan, rank), strict=True)
        for number in stages.units[stage]
    )
    # Of all micro-batches but the last one, the next begins with what is prefetched.
    return gathered + (prefetched_bytes(plan, units) if plan.microbatches > 1 else 0)


def _averaged_in_all(stages: Stages) -> float:
    """Return the bytes of gradients that a pipeline of ranks hands to averages in a step."""
    plan, units = stages.plan, stages.table.units
    whole = sum(gradient_bytes(plan, unit) for unit in units)
    often = plan.microbatches if plan.zero >= 2 and plan.pp == 1 else 1
    averaged = often * whole
    if plan.zero and plan.shards < plan.dp:  # then each shard once, over its copies
        averaged += whole / plan.shards
    replicated = sum(replicated_bytes(plan, unit) for unit in units)
    return averaged + replicated * len(_replica_groups(plan))


def _replica_groups(plan: PlanFields) -> list[int]:
    """Return the sizes of the groups over which all replicas are reduced in turn."""
    return [size for size in (plan.dp // plan.shards, plan.shards) if size > 1]


def _statistic_bytes(stages: Stages, number: int) -> int:
    """Return the bytes of BatchNorm's statistics that a rank exchanges for a micro-batch.

    Of each channel three numbers are gathered in a forward pass, in each group what the one before
    has gathered, and two are summed in the backward pass.
    """
    plan, unit = stages.plan, stages.table.units[number]
    if plan.bn != "sync":
        return 0
    gathered, replicas, groups = 0, 1, _replica_groups(plan)
    for size in groups:
        replicas *= size
        gathered += 3 * replicas
    passes = 1 + (number in stages.recomputed)
    return FLOAT_BYTES * unit.batch_norm_channels * (passes * gathered + 2 * len(groups))


def _tensor_bytes_of_passes(stages: Stages, number: int, microbatch: int) -> float:
    """Return the bytes that a tp rank hands to collectives in the passes of a micro-batch."""
    plan, units = stages.plan, stages.table.units
    if plan.tensor == "1d":
        begins = any(number == own[0] for own in stages.units)
        every = [tensor_parallel_bytes(plan, units, number, microbatch, begins_stage=begins)]
    else:
        every = [*arranged_tensor_bytes(plan, units, number, microbatch).values()]
    return sum(
        sent.forward.total
        + sent.backward.total
        + (sent.again.total if number in stages.recomputed else 0.0)
        for sent in every
    )


def _context_bytes_of_passes(stages: Stages, number: int, microbatch: int) -> float:
    """Return the bytes that a cp rank sends and hands over in the passes of a micro-batch."""
    sent = context_parallel_bytes(stages.plan, stages.table.units, number, microbatch)
    repeated = sent.again.total if number in stages.recomputed else 0.0
    return sent.forward.total + sent.backward.total + repeated


class LinkCodecBytes(NamedTuple):
    """Bytes that a codec of ``links`` reads and writes for each number of a message."""

    encoding: int
    decoding: int


#: by the plan's ``links``, as `tests/engine/test_compression_bytes.py` counts the trainer's; of
#: topk five reads of all keys (8 bytes each), by radix select, of which it sees one
LINK_CODEC_BYTES: Final[Mapping[str, LinkCodecBytes]] = {
    "none": LinkCodecBytes(0, 0),
    "bf16": LinkCodecBytes(6, 6),
    "int8": LinkCodecBytes(83, 13),
    "topk": LinkCodecBytes(125, 7),
}
#: by the plan's ``gradients``: bytes read and written for each number, beyond those in fp32
GRADIENT_BYTES: Final[Mapping[str, int]] = {"fp32": 0, "bf16": 8, "powersgd": 44}
#: likewise FLOPs: four products of a matrix with factors of rank 4
GRADIENT_FLOPS: Final[Mapping[str, int]] = {"fp32": 0, "bf16": 0, "powersgd": 4 * 2 * 4}


def gradient_compression_s(
    plan: ParallelPlan, times: UnitTimes, units: Iterable[UnitCounts]
) -> float:
    """Return the seconds of compressing the gradients of ``units`` in a step, and of the reverse.

    FSDP has averages in bf16 cast into its shards, each time that it scatters.
    """
    if plan.dp == 1 or plan.gradients == FIELDS["gradients"].default:
        return 0.0
    elements = sum(held_parameters(plan, unit) for unit in units)
    if plan.zero:
        often = plan.microbatches if plan.zero >= 2 and plan.pp == 1 else 1
        elements *= often / plan.shards
    bytes_s = elements * GRADIENT_BYTES[plan.gradients] * times.codec_byte_s
    return max(bytes_s, elements * GRADIENT_FLOPS[plan.gradients] * times.codec_flop_s)


def link_codec_s(
    plan: ParallelPlan, times: UnitTimes, stages: Stages, stage: int
) -> tuple[float, float]:
    """Return the seconds that codecs of ``links`` add to a stage's forward and backward pass.

    A forward pass decodes what comes from the stage before and encodes what goes to the next one; a
    backward pass does so with the gradients of both.
    """
    if plan.links == FIELDS["links"].default:
        return 0.0, 0.0
    codec, plain = LINK_CODEC_BYTES[plan.links], replace(plan, links="none")
    before_s, after_s = (
        message_bytes(plain, stages.table.units, stages.units[sender][-1], times.microbatch)
        / FLOAT_BYTES
        * times.codec_byte_s
        if 0 <= sender < len(stages.units) - 1
        and stages.rank_of[sender] != stages.rank_of[sender + 1]
        else 0.0
        for sender in (stage - 1, stage)
    )
    return (
        codec.decoding * before_s + codec.encoding * after_s,
        codec.encoding * before_s + codec.decoding * after_s,
    )
