"""The bytes that ranks hand to sends and collectives in a step, by what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.stages import Stages
    from hybridperf.projection.units import Unit

__all__ = [
    "gradient_bytes",
    "held_parameters",
    "message_bytes",
    "parameter_bytes",
    "parameter_gathers",
    "sent_bytes",
    "tensor_parallel_bytes",
]

_FLOAT_BYTES: Final = 4  #: weights, gradients and what stages send are fp32
_KEPT_SHARE: Final = 10  #: ``links=topk`` sends one value in so many, with its index


#: by the plan's ``links``: bytes of a message of so many elements in so many channels
_CODED_BYTES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "none": lambda elements, _: _FLOAT_BYTES * elements,
    "bf16": lambda elements, _: 2 * elements,
    "int8": lambda elements, channels: elements + _FLOAT_BYTES * channels,
    "topk": lambda elements, _: 2 * _FLOAT_BYTES * max(1, elements // _KEPT_SHARE),
}


def message_bytes(plan: ParallelPlan, unit: Unit, microbatch: int) -> int:
    """Return the bytes of a message with the outputs of ``unit``, or with their gradient.

    With ``sp`` a rank of a tp group sends its own tokens only.
    """
    parts = plan.tp if plan.sp and unit.tp_parameters else 1
    elements = -(-unit.output_elements // parts) * microbatch
    return _CODED_BYTES[plan.links](elements, unit.output_channels)


def held_parameters(plan: ParallelPlan, unit: Unit) -> float:
    """Return the parameters of ``unit`` on each rank of a tp group, before sharding."""
    return unit.parameters - unit.tp_parameters + unit.tp_parameters / plan.tp


def gradient_bytes(plan: ParallelPlan, unit: Unit) -> float:
    """Return the bytes of the gradients of ``unit`` that a replica averages with the others.

    Plans that delay or compress add a number for each tensor, which says whether it has a gradient.
    """
    marks = unit.tensors if plan.delays_or_compresses else 0
    if plan.gradients == "powersgd":
        return float(_FLOAT_BYTES * (unit.low_rank_elements + marks))
    each = 2 if plan.gradients == "bf16" else _FLOAT_BYTES
    return each * (held_parameters(plan, unit) + marks)


def parameter_gathers(plan: ParallelPlan) -> float:
    """Return how often in a step sharded parameters are gathered.

    ``zero=1`` keeps them for a step, ``zero=2`` for a micro-batch; ``zero=3`` gathers them for each
    pass. In a pipeline they stay from a backward pass on until the next forward pass.
    """
    if not plan.zero:
        return 0
    if plan.zero == 3:
        return 2 * plan.microbatches
    return plan.microbatches if plan.zero == 2 else 1


def parameter_bytes(plan: ParallelPlan, unit: Unit) -> float:
    """Return the bytes of the parameters of ``unit`` in the form in which they are gathered."""
    narrow = plan.precision in {"bf16", "fp16"} and plan.offload == "none"
    return (2 if narrow else _FLOAT_BYTES) * held_parameters(plan, unit)


def tensor_parallel_bytes(plan: ParallelPlan, unit: Unit, microbatch: int) -> float:
    """Return the bytes that a tp rank hands to all-reduces in a forward pass of ``unit``."""
    if plan.tp == 1:
        return 0.0
    narrow = plan.precision in {"bf16", "fp16"}
    return (2.0 if narrow else _FLOAT_BYTES) * unit.tp_reduced_elements * microbatch


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
        reduces = passes if plan.zero >= 2 and plan.pp == 1 else 1
        sent["gradients"] = every * reduces * sum(gradient_bytes(plan, unit) for unit in units)
        gathered = sum(parameter_bytes(plan, unit) for unit in units)
        sent["parameters"] = every * parameter_gathers(plan) * gathered
    sent["tensor_parallel"] = (
        every
        * passes
        * sum(
            tensor_parallel_bytes(plan, unit, microbatch) * (2 + (number in stages.recomputed))
            for number, unit in enumerate(units)
        )
    )
    return {kind: count for kind, count in sent.items() if count}
