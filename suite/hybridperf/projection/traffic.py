"""The bytes that ranks hand to sends and collectives in a step, by what they are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from hybridperf.plan.actions import ActionKind
from hybridperf.plan.schedules import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hybridperf.plan.fields import PlanFields
    from hybridperf.projection.stages import Stages
    from hybridperf.projection.units import Unit

__all__ = [
    "AGAIN",
    "FLOAT_BYTES",
    "computed_bytes",
    "gathered_bytes",
    "gradient_bytes",
    "held_parameters",
    "message_bytes",
    "parameter_bytes",
    "parameter_gathers",
    "sent_bytes",
    "tensor_parallel_bytes",
]

FLOAT_BYTES: Final = 4  #: weights, gradients and what stages send are fp32
#: of the sums over tp in a forward pass, those that recomputation repeats: torch ends it before the
#: last one of two in a layer, which no gradient needs
AGAIN: Final = 0.5
_KEPT_SHARE: Final = 10  #: ``links=topk`` sends one value in so many, with its index


#: by the plan's ``links``: bytes of a message of so many elements in so many channels
_CODED_BYTES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "none": lambda elements, _: FLOAT_BYTES * elements,
    "bf16": lambda elements, _: 2 * elements,
    "int8": lambda elements, channels: elements + FLOAT_BYTES * channels,
    "topk": lambda elements, _: 2 * FLOAT_BYTES * max(1, elements // _KEPT_SHARE),
}


def message_bytes(plan: PlanFields, unit: Unit, microbatch: int) -> int:
    """Return the bytes of a message with the outputs of ``unit``, or with their gradient.

    With ``sp`` a rank of a tp group sends its own tokens only.
    """
    parts = plan.tp if plan.sp and unit.tp_parameters else 1
    elements = -(-unit.output_elements // parts) * microbatch
    return _CODED_BYTES[plan.links](elements, unit.output_channels)


def held_parameters(plan: PlanFields, unit: Unit) -> float:
    """Return the parameters of ``unit`` on each rank of a tp group, before sharding."""
    return unit.parameters - unit.tp_parameters + unit.tp_parameters / plan.tp


def gradient_bytes(plan: PlanFields, unit: Unit) -> float:
    """Return the bytes of the gradients of ``unit`` that a replica averages with the others.

    Plans that delay or compress add a number for each tensor, which says whether it has a gradient.
    """
    marks = unit.tensors if plan.delays_or_compresses else 0
    if plan.gradients == "powersgd":
        return float(FLOAT_BYTES * (unit.low_rank_elements + marks))
    each = 2 if plan.gradients == "bf16" else FLOAT_BYTES
    return each * (held_parameters(plan, unit) + marks)


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


def parameter_bytes(plan: PlanFields, unit: Unit) -> float:
    """Return the bytes of the parameters of ``unit`` in the form in which they are gathered."""
    return gathered_bytes(plan) * held_parameters(plan, unit)


def gathered_bytes(plan: PlanFields) -> int:
    """Return the bytes of a parameter as it is gathered."""
    return computed_bytes(plan) if plan.offload == "none" else FLOAT_BYTES


def computed_bytes(plan: PlanFields) -> int:
    """Return the bytes of a number that a pass computes; those of normalization layers are more."""
    return 2 if plan.precision in {"bf16", "fp16"} else FLOAT_BYTES


def tensor_parallel_bytes(plan: PlanFields, unit: Unit, microbatch: int) -> float:
    """Return the bytes that a tp rank hands to all-reduces in a forward pass of ``unit``."""
    if plan.tp == 1:
        return 0.0
    return float(computed_bytes(plan) * unit.tp_reduced_elements * microbatch)


def sent_bytes(stages: Stages, microbatch: int) -> dict[str, float]:
    """Return the bytes that all ranks hand to sends and collectives in a step, by kind.

    ``activations`` and ``activation_gradients`` cross from stage to stage, ``gradients`` are
    averaged over replicas, ``parameters`` gathered from shards, and ``tensor_parallel`` are sums of
    activations in tp groups. What of them a link carries: `hybridperf.projection.collectives`.
    """
    plan, units, last = stages.plan, stages.table.units, len(stages.units) - 1
    every, passes = plan.dp * plan.tp, plan.microbatches
    messages = (
        every
        * passes
        * sum(
            message_bytes(plan, units[own[-1]], microbatch)
            for number, own in enumerate(stages.units)
            if number < last and stages.rank_of[number] != stages.rank_of[number + 1]
        )
    )
    sent: dict[str, float] = {"activations": messages, "activation_gradients": messages}
    if plan.dp > 1:
        sent["gradients"] = every * sum(gradient_bytes(plan, unit) for unit in units)
        if plan.zero >= 2 and plan.pp == 1:
            sent["gradients"] *= passes
        if plan.zero and plan.shards < plan.dp:  # then each shard once, over its copies
            whole = sum(gradient_bytes(plan, unit) for unit in units)
            sent["gradients"] += every * whole / plan.shards
        sent["parameters"] = every * sum(
            often * parameter_bytes(plan, units[number])
            for rank in range(plan.pp)
            for stage, often in zip(
                plan.stages_of(rank), parameter_gathers(plan, rank), strict=True
            )
            for number in stages.units[stage]
        )
    sums = (
        every
        * passes
        * sum(
            tensor_parallel_bytes(plan, unit, microbatch)
            * (2 + AGAIN * (number in stages.recomputed))
            for number, unit in enumerate(units)
        )
    )
    sent["tensor_parallel"] = sums * (2 if plan.sp else 1)  # scattered, and gathered later
    return {kind: count for kind, count in sent.items() if count}
