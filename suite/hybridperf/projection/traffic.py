"""Traffic: places of units, and bytes of sends and collectives in a step, by kind.

Includes the cost of compression on devices without measured codecs: memory traffic and FLOPs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan.fields import FIELDS
from hybridperf.plan.schedules import SCHEDULES, ActionKind
from hybridperf.projection.exchanges import (
    FLOAT_BYTES,
    arranged_gradient_bytes,
    arranged_parts,
    arranged_tensor_bytes,
    computed_bytes,
    context_parallel_bytes,
    splits_tokens,
    tensor_parallel_bytes,
)
from hybridperf.projection.network import node_sent_bytes
from hybridperf.projection.units import without_repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.network import Network, RankGroup
    from hybridperf.projection.units import Parameters, UnitCounts, UnitTable, UnitTimes

__all__ = [
    "GRADIENT_BYTES",
    "LINK_CODEC_BYTES",
    "LinkCodecBytes",
    "Stages",
    "axis_stride",
    "gathered_bytes",
    "gradient_bytes",
    "gradient_compression_s",
    "held_parameters",
    "link_codec_s",
    "message_bytes",
    "parameter_bytes",
    "parameter_gathers",
    "prefetched_bytes",
    "replica_node_bytes",
    "replicated_bytes",
    "sent_bytes",
    "sharded_elements",
    "shared_elements",
    "shared_sums",
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
        parts = sum(group.elements / arranged_parts(plan, group) for group in groups)
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

    The mean over replicas; in a sharding group each replica adds up its part. Under ``cp`` all
    parameters of the unit, under ``sp`` the parameters outside of split layers: each rank computed
    their gradients from its own tokens only.
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
    ranks = list(product(range(plan.cp), range(plan.tp)))  # of a stage
    replicas = [_replica_bytes(stages, rank) for rank in range(plan.pp)]
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
        "gradients": every * sum(own.gradients for own in replicas),
        "parameters": every * sum(own.gathered for own in replicas),
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


class _ReplicaBytes(NamedTuple):
    """Bytes that a rank hands in a step to the collectives of its replicas."""

    gathered: float  #: parameters, in the sharding group
    scattered: float  #: gradients, in the sharding group
    reduced: float  #: gradients, in the group of replicas of a shard
    replicated: float  #: gradients that sharding leaves whole, in each of both groups
    groups: int  #: of both groups, those with several ranks

    @property
    def gradients(self) -> float:
        """Return the bytes of gradients that it hands to all of them."""
        return self.scattered + self.reduced + self.replicated * self.groups


def _replica_bytes(stages: Stages, rank: int) -> _ReplicaBytes:
    """Return what ``rank`` of a pipeline exchanges with its replicas in a step."""
    plan, units = stages.plan, stages.table.units
    own = [units[number] for number in stages.units_of(rank)]
    gathered = sum(
        often * parameter_bytes(plan, units[number])
        for stage, often in zip(plan.stages_of(rank), parameter_gathers(plan, rank), strict=True)
        for number in stages.units[stage]
    )
    if plan.microbatches > 1:  # of all but the last one, the next begins with what is prefetched
        gathered += prefetched_bytes(plan, units)
    whole = sum(gradient_bytes(plan, unit) for unit in own)
    often = plan.microbatches if plan.zero >= 2 and plan.pp == 1 else 1
    return _ReplicaBytes(
        gathered,
        often * whole if plan.shards > 1 else 0.0,
        whole / plan.shards if plan.shards < plan.dp else 0.0,
        sum(replicated_bytes(plan, unit) for unit in own),
        len(_replica_groups(plan)),
    )


def replica_node_bytes(stages: Stages, network: Network) -> float:
    """Return the bytes that node 0 sends to others in a step to average gradients, as rings.

    With ``zero``, also those of the parameters that it gathers. Gloo scatters by an all-reduce.
    """
    plan, stride, per_node = stages.plan, axis_stride(stages.plan, "dp"), network.devices_per_node
    sent = 0.0
    axes = ("pp", "cp", "tp")
    for place in product(*(range(getattr(plan, axis)) for axis in axes)):
        first = sum(at * axis_stride(plan, axis) for at, axis in zip(place, axes, strict=True))
        if first >= per_node:  # none of these replicas is on node 0
            continue
        nodes = [(first + replica * stride) // per_node for replica in range(plan.dp)]
        own = _replica_bytes(stages, place[0])
        scattered = own.scattered if network.library == "gloo" else own.scattered / 2
        in_shards = own.gathered / 2 + scattered + own.replicated
        over_copies = own.reduced + own.replicated
        for size, places in (
            *((in_shards, nodes[n : n + plan.shards]) for n in range(0, plan.dp, plan.shards)),
            *((over_copies, nodes[n :: plan.shards]) for n in range(plan.shards)),
        ):
            if places[0] == 0:
                sent += node_sent_bytes(size, places, "ring")
    return sent


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
