"""Bytes of memory that each rank of a pipeline needs, by their use."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan.fields import PlanFields
from hybridperf.plan.program import rank_program
from hybridperf.plan.schedules import ActionKind
from hybridperf.projection.costs import token_share
from hybridperf.projection.exchanges import (
    FLOAT_BYTES,
    computed_bytes,
)
from hybridperf.projection.simulate import fewer_microbatches
from hybridperf.projection.traffic import (
    Stages,
    gathered_bytes,
    held_parameters,
    sharded_elements,
    shared_elements,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.projection.units import Parameters, UnitCounts, UnitTable

__all__ = ["STATE_TENSORS", "Memory", "memory_bytes"]

#: what an optimizer keeps for each parameter: momentum, or first and second moments
STATE_TENSORS: Final[Mapping[str, int]] = {"sgd": 1, "lars": 1, "adamw": 2, "lamb": 2}

# Of the activations of a transformer's layer, tensor parallelism replicates 10 of 34 bytes for an
# element of its output in fp16 (Korthikanti et al. 2022, equation 2): inputs of both normalizations
# and of both pairs of split layers, and two masks.
_REPLICATED_TENSORS: Final = 5


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak bytes of memory of one rank's device, by their use."""

    weights_bytes: int  #: newest version of the weights, and running statistics
    versions_bytes: int  #: older versions of the weights, with which later passes compute
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int  #: activations that are kept between forward and backward passes

    @property
    def total_bytes(self) -> int:
        """Return the sum of all of them."""
        return (
            self.weights_bytes
            + self.versions_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
        )


def memory_bytes(
    plan: ParallelPlan, units: UnitTable, cuts: Sequence[int], microbatch: int, optimizer: str
) -> tuple[Memory, ...]:
    """Return the memory of each rank of a pipeline for micro-batches of ``microbatch`` samples.

    ``cuts`` are the first units of each stage but the first, ``optimizer`` one of `STATE_TENSORS`.
    Versions, gradients and activations in flight are counted in the rank's program. Workspaces of
    libraries and kernels are not included.
    """
    stages = Stages(plan, units, cuts)
    return tuple(_rank_memory(stages, rank, microbatch, optimizer) for rank in range(plan.pp))


def _rank_memory(stages: Stages, rank: int, microbatch: int, optimizer: str) -> Memory:
    plan, units = stages.plan, stages.table.units
    own = [units[number] for number in stages.units_of(rank)]
    # Of parameters that units share, each stage has a whole copy, whatever is sharded.
    copies = sum(map(shared_elements, own)) if plan.zero else 0
    parameters = sum(held_parameters(plan, unit) for unit in own) - copies
    largest = max(
        held_parameters(plan, unit) - (shared_elements(unit) if plan.zero else 0) for unit in own
    )
    sizes = {stage: float(_kept_bytes(stages, stage, microbatch)) for stage in plan.stages_of(rank)}
    held = _most_held(stages.plan, rank, sizes)
    again = [
        _kept_elements(plan, units[n]) * microbatch
        + (_copied_parameters(plan, units[n]) if plan.tensor != "1d" else 0.0)
        for n in stages.units_of(rank)
        if n in stages.recomputed
    ]
    recomputing = max(again, default=0.0) * computed_bytes(plan)
    sharded = sharded_elements(plan, parameters)
    whole, gradients = _whole_shares(plan, parameters, largest)
    state = STATE_TENSORS[optimizer] * (sharded + copies)
    buffers = sum(unit.buffers for unit in own)
    return Memory(
        weights_bytes=round(
            FLOAT_BYTES * ((sharded if plan.zero else 0) + copies + whole + buffers)
        ),
        versions_bytes=round(FLOAT_BYTES * parameters * (held.versions - 1)),
        gradients_bytes=round(
            FLOAT_BYTES * ((sharded if plan.zero else 0) + (copies + gradients) * held.gradients)
        ),
        optimizer_bytes=round(FLOAT_BYTES * state),
        activations_bytes=round(held.activations + recomputing),
    )


def _whole_shares(plan: ParallelPlan, parameters: float, largest: float) -> tuple[float, float]:
    """Return the elements of unsharded weights and gradients on one rank.

    FSDP gathers the next unit while one computes, and scatters one while the next computes.
    """
    if plan.zero == 0:
        return parameters, parameters
    narrow = gathered_bytes(plan) / FLOAT_BYTES
    weights = parameters if plan.zero < 3 else min(parameters, 2 * largest)
    keeps = (plan.zero == 1 and plan.microbatches > 1) or plan.pp > 1
    return narrow * weights, parameters if keeps else min(parameters, 2 * largest)


def _kept_bytes(stages: Stages, stage: int, microbatch: int) -> float:
    """Return the bytes that ``stage`` keeps of a micro-batch between its passes.

    A unit that is computed again keeps its outputs only, as inputs of what follows. Under bf16 and
    fp16, autograd keeps the narrow copies of weights that each pass makes, and under ``tensor`` the
    operands that it gathers. Where activations cease to be split over ``cp`` or ``tensor``, the
    outputs are kept whole besides.
    """
    plan, table = stages.plan, stages.table
    numbers = stages.units[stage]
    elements, copies = float(table.input_elements), 0.0
    if before := numbers[0]:
        inputs = table.units[before - 1].output_elements
        elements = inputs * _output_share(plan, table.units, before - 1)
    for number in numbers:
        unit, outputs = table.units[number], _output_share(plan, table.units, number)
        if number in stages.recomputed:
            outputs /= plan.tp if plan.sp and unit.tp_parameters else 1
            elements += unit.output_elements * outputs
        else:
            elements += _kept_elements(plan, unit)
            elements += unit.output_elements * (outputs - _activation_share(plan, unit))
            copies += computed_bytes(plan) * _copied_parameters(plan, unit)
    return elements * microbatch * computed_bytes(plan) + copies


def _copied_parameters(plan: ParallelPlan, unit: UnitCounts) -> float:
    """Return the weights of ``unit`` of which each pass of one rank makes a copy."""
    if plan.tensor != "1d" and unit.tokens:
        weights, axes = sum(group.elements for group in _matrices(unit)), plan.tensor_axes
        return weights * axes["i"] * axes.get("e", 1) / plan.tp
    narrow = computed_bytes(plan) < FLOAT_BYTES and not plan.zero
    return held_parameters(plan, unit) if narrow else 0.0


def _matrices(unit: UnitCounts) -> list[Parameters]:
    """Return the weights of the linear layers of ``unit`` that tensor parallelism splits."""
    return [group for group in unit.parameter_groups if group.kind in {"column", "row"}]


def _kept_elements(plan: ParallelPlan, unit: UnitCounts) -> float:
    """Return the elements that ``unit`` keeps of a sample on one rank of the tp and cp groups."""
    whole, share = float(unit.kept_elements), _activation_share(plan, unit)
    if plan.tensor != "1d" and unit.tokens:
        rows = (group for group in _matrices(unit) if group.kind == "row")
        inputs = unit.tp_inputs + unit.tokens * sum(group.elements // group.rows for group in rows)
        return whole * share + inputs / plan.batch_parts  # gathered
    if plan.tp == 1 or not unit.tp_parameters:
        return whole * share
    replicated = 0 if plan.sp else min(whole, _REPLICATED_TENSORS * unit.output_elements)
    return (replicated + (whole - replicated) / plan.tp) * share


def _activation_share(plan: ParallelPlan, unit: UnitCounts) -> float:
    """Return the share of the activations of ``unit`` that ``cp`` or ``tensor`` leaves a rank."""
    if plan.tensor != "1d":
        return 1 / plan.tp if unit.tokens else 1.0
    return token_share(plan, unit)


def _output_share(plan: ParallelPlan, units: Sequence[UnitCounts], number: int) -> float:
    """Return the share of the outputs of unit ``number`` that a rank has for the next unit."""
    if number + 1 == len(units):
        return 1.0
    return max(_activation_share(plan, unit) for unit in units[number : number + 2])


class _Held(NamedTuple):
    """Peaks of a program."""

    versions: int  #: versions of the weights
    gradients: int  #: steps whose gradients are not applied yet
    activations: float  #: bytes of the activations of micro-batches in flight


def _most_held(plan: ParallelPlan, rank: int, sizes: Mapping[int, float]) -> _Held:
    """Return what ``rank`` holds at most, where a micro-batch of a stage keeps ``sizes`` bytes."""
    short = fewer_microbatches(plan).microbatches
    versions, gradients, in_flight = _count(
        plan.schedule, plan.pp, plan.stages, short, plan.staleness, plan.flush, rank
    )
    own = [sizes[stage] for stage in plan.stages_of(rank)]
    most = max(sum(map(mul, counts, own)) for counts in in_flight)
    if plan.schedule == "gpipe":  # which keeps all micro-batches
        most *= plan.microbatches / short
    return _Held(versions, gradients, most)


@functools.lru_cache(maxsize=10_000)  # a search asks for the same few programs, with many sizes
def _count(
    schedule: str | None,
    pp: int,
    stages: int,
    microbatches: int,
    staleness: int,
    flush: bool,
    rank: int,
) -> tuple[int, int, frozenset[tuple[int, ...]]]:
    """Return the most versions and steps alive, and the counts of micro-batches by own stage."""
    plan = PlanFields(
        pp=pp,
        schedule=schedule,
        stages=stages,
        microbatches=microbatches,
        staleness=staleness,
        flush=flush,
    )
    places = {stage: place for place, stage in enumerate(plan.stages_of(rank))}
    alive, steps, counts = set[int](), set[int](), [0] * len(places)
    versions, gradients, in_flight = 1, 1, set[tuple[int, ...]]()
    for kind, step, _, version, stage in rank_program(plan, rank, range(staleness + 2)):
        match kind:
            case ActionKind.FORWARD:
                alive.add(version)
                counts[places[stage]] += 1
                in_flight.add(tuple(counts))
            case ActionKind.BACKWARD | ActionKind.BACKWARD_WEIGHT:
                steps.add(step)
                counts[places[stage]] -= 1
            case ActionKind.UPDATE:
                steps.discard(step)
            case ActionKind.PUBLISH:
                alive.add(version)
            case ActionKind.RETIRE:
                alive.discard(version)
        versions, gradients = max(versions, len(alive)), max(gradients, len(steps))
    return versions, gradients, frozenset(in_flight)
