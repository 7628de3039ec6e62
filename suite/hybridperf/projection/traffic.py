"""The bytes that ranks hand to sends and collectives in a step, by what they are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from hybridperf.plan.actions import ActionKind
from hybridperf.plan.schedules import SCHEDULES
from hybridperf.projection.tensor_parallel import (
    FLOAT_BYTES,
    computed_bytes,
    splits_tokens,
    tensor_parallel_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.stages import Stages
    from hybridperf.projection.units import Parameters, Unit

__all__ = [
    "gathered_bytes",
    "gradient_bytes",
    "held_parameters",
    "message_bytes",
    "parameter_bytes",
    "parameter_gathers",
    "prefetched_bytes",
    "replicated_bytes",
    "sent_bytes",
    "token_gradient_bytes",
]

_KEPT_SHARE: Final = 10  #: ``links=topk`` sends one value in so many, with its index


#: by the plan's ``links``: bytes of a message of so many elements in so many channels
_CODED_BYTES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "none": lambda elements, _: FLOAT_BYTES * elements,
    "bf16": lambda elements, _: 2 * elements,
    "int8": lambda elements, channels: elements + FLOAT_BYTES * channels,
    "topk": lambda elements, _: 2 * FLOAT_BYTES * max(1, elements // _KEPT_SHARE),
}


def message_bytes(
    plan: PlanFields, units: Sequence[Unit], number: int, microbatch: int, tp_rank: int = 0
) -> int:
    """Return the bytes of a message with the outputs of unit ``number``, or with their gradient.

    With ``sp`` a rank of a tp group sends its own tokens only; the first one has the most.
    """
    unit = units[number]
    elements = unit.output_elements
    if splits_tokens(plan, units, number):
        most = -(-unit.tokens // plan.tp)
        own = min(most, max(0, unit.tokens - tp_rank * most))
        elements = elements // unit.tokens * own
    return _CODED_BYTES[plan.links](elements * microbatch, unit.output_channels)


def held_parameters(plan: PlanFields, unit: Unit) -> float:
    """Return the parameters of ``unit`` on each rank of a tp group, before sharding."""
    return unit.parameters - unit.tp_parameters + unit.tp_parameters / plan.tp


def gradient_bytes(plan: PlanFields, unit: Unit) -> float:
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


def replicated_bytes(plan: PlanFields, unit: Unit) -> int:
    """Return the bytes of those gradients of ``unit`` that replicas average though they shard."""
    if not plan.zero:
        return 0
    return _averaged_bytes(plan) * _replicated_elements(unit, _leaves_normalization(plan))


def _leaves_normalization(plan: PlanFields) -> bool:
    """Return whether normalization layers of units that are computed narrow are not sharded."""
    return gathered_bytes(plan) < FLOAT_BYTES


@functools.lru_cache(maxsize=10_000)  # a search asks for the same few, in very many plans
def _sharded_elements(unit: Unit, tp: int, shards: int, leaves_normalization: bool) -> int:
    """Return the elements of all shards of ``unit``, on one rank of a tp group.

    FSDP pads the rows of each parameter so that ``shards`` divide them.
    """
    elements = 0
    for group in unit.parameter_groups:
        if _is_replicated(group, unit, leaves_normalization):
            continue
        rows = -(-group.rows // tp) if group.kind == "column" else group.rows
        of_a_row = group.elements // group.rows
        if group.kind == "row":
            of_a_row //= tp
        elements += -(-rows // shards) * shards * of_a_row
    return elements


@functools.lru_cache(maxsize=10_000)
def _replicated_elements(unit: Unit, leaves_normalization: bool) -> int:
    """Return the elements of the parameters of ``unit`` that are not sharded."""
    return sum(
        group.elements
        for group in unit.parameter_groups
        if _is_replicated(group, unit, leaves_normalization)
    )


def _is_replicated(group: Parameters, unit: Unit, leaves_normalization: bool) -> bool:
    normalizes = group.kind == "normalization" and unit.is_narrow
    return not group.rows or (leaves_normalization and normalizes)


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


def parameter_bytes(plan: PlanFields, unit: Unit) -> int:
    """Return the bytes of the parameters of ``unit`` in the form in which they are gathered.

    Units that autocast does not compute narrow, such as embeddings, are gathered in fp32.
    """
    each = gathered_bytes(plan) if unit.is_narrow else FLOAT_BYTES
    return each * _sharded_elements(unit, plan.tp, plan.shards, _leaves_normalization(plan))


def prefetched_bytes(plan: PlanFields, units: Sequence[Unit]) -> int:
    """Return the bytes that FSDP prefetches at the end of a backward pass, and does not use.

    It takes the unit whose forward pass came before that of the first one in an earlier
    micro-batch, which is the last one, for the next to need its parameters. In a pipeline it
    prefetches nothing.
    """
    if not plan.zero or plan.pp > 1:
        return 0
    sizes = [size for unit in units if (size := parameter_bytes(plan, unit))]
    return sizes[-1] if len(sizes) > 1 else 0


def gathered_bytes(plan: PlanFields) -> int:
    """Return the bytes of a parameter as it is gathered, if autocast computes with it."""
    return computed_bytes(plan) if plan.offload == "none" else FLOAT_BYTES


def token_gradient_bytes(plan: PlanFields, unit: Unit) -> float:
    """Return the bytes of the gradients of ``unit`` that a tp rank adds to others', on average.

    They are those of parameters that tensor parallelism does not split, and of which each rank has
    seen only its tokens. Replicas that shard have a part each.
    """
    if not (plan.sp and unit.tokens):
        return 0.0
    elements = 0.0
    for group in unit.parameter_groups:
        if group.kind in _OF_SPLIT_LAYERS:
            continue
        replicated = _is_replicated(group, unit, _leaves_normalization(plan))
        elements += group.elements / (1 if replicated else plan.shards)
    return FLOAT_BYTES * elements


_OF_SPLIT_LAYERS: Final = ("column", "row", "row_bias")  # whose gradients are whole


def sent_bytes(stages: Stages, microbatch: int) -> dict[str, float]:
    """Return the bytes that all ranks hand to sends and collectives in a step, by kind.

    ``activations`` and ``activation_gradients`` cross from stage to stage, ``gradients`` are
    averaged over replicas, ``parameters`` gathered from shards, ``statistics`` are those of
    BatchNorm over all replicas, and ``tensor_parallel`` is all that ranks of a tp group exchange.
    What of them a link carries: `hybridperf.projection.collectives`.
    """
    plan, units = stages.plan, stages.table.units
    every = plan.dp * plan.tp
    messages = (
        plan.dp
        * plan.microbatches
        * sum(
            message_bytes(plan, units, stages.units[stage][-1], microbatch, tp_rank)
            for stage in range(len(stages.units) - 1)
            if stages.rank_of[stage] != stages.rank_of[stage + 1]
            for tp_rank in range(plan.tp)
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
            plan.microbatches * _tensor_parallel_bytes(stages, number, microbatch)
            + token_gradient_bytes(plan, unit)
            for number, unit in enumerate(units)
        ),
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


def _tensor_parallel_bytes(stages: Stages, number: int, microbatch: int) -> float:
    """Return the bytes that a tp rank hands to collectives in the passes of a micro-batch."""
    begins = any(number == own[0] for own in stages.units)
    sent = tensor_parallel_bytes(
        stages.plan, stages.table.units, number, microbatch, begins_stage=begins
    )
    repeated = sent.again.total if number in stages.recomputed else 0.0
    return sent.forward.total + sent.backward.total + repeated
