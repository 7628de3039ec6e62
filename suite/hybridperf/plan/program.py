"""The program of a pipeline stage: what its rank does in a block of steps, as data.

Delayed data parallelism, GroPipe, PipeDream-2BW and PipeDream are one recurrence, with U an
optimizer, g_t the gradient of step t and d the plan's ``staleness``:

    V(t + 1) = V(t) + U(mean over replicas of g_t(V(max(0, t - d))))

A program states which version V of the weights each pass computes with, and applies updates as late
as the forward pass that needs them. The engine executes it.
"""

from __future__ import annotations

from enum import Enum
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.fields import PlanFields

__all__ = ["Action", "ActionKind", "block_program", "version_of"]


class ActionKind(Enum):
    """What a rank does with a micro-batch, a step's gradients, or a version of the weights."""

    RECEIVE_ACTIVATION = "receive activation"
    FORWARD = "forward"
    SEND_ACTIVATION = "send activation"
    RECEIVE_GRADIENT = "receive gradient"
    BACKWARD = "backward"
    SEND_GRADIENT = "send gradient"
    REDUCE = "reduce"  #: all gradients of the step are there; replicas average them from now on
    UPDATE = "update"  #: wait for the averaged gradients of the step, and apply them
    PUBLISH = "publish"  #: make the updated weights available as a version
    RETIRE = "retire"  #: no later pass needs the version


class Action(NamedTuple):
    """One action of a program."""

    kind: ActionKind
    step: int  #: counted from the start of training
    microbatch: int = 0  #: of the step, for passes and what is sent between stages
    version: int = 0  #: of the weights: computed with, published or retired


def version_of(step: int, staleness: int, oldest: int = 0) -> int:
    """Return the version of the weights that ``step`` computes with.

    Version t has the updates of the steps before t. None older than ``oldest`` exists, which is 0
    unless training resumed from a checkpoint with fewer versions.
    """
    return max(oldest, step - staleness)


def block_program(
    plan: PlanFields, stage: int, steps: range, *, oldest: int = 0
) -> Iterator[Action]:
    """Yield the actions of pipeline stage ``stage`` in a block of ``steps``, in order.

    At the start and the end of a block no passes are in flight and all updates have been applied,
    so version ``steps.start`` is there, and older ones that later steps need. The block does not
    change which version a step computes with.
    """
    updated = steps.start
    for kind, step, microbatch in _passes(plan, stage, steps):
        version = version_of(step, plan.staleness, oldest)
        if kind is ActionKind.FORWARD:
            while updated < version:
                yield from _update(updated)
                updated += 1
        yield from _with_links(Action(kind, step, microbatch, version), stage, plan.pp)
        if kind is ActionKind.BACKWARD and microbatch == plan.microbatches - 1:
            yield Action(ActionKind.REDUCE, step)
            if version_of(step + 1, plan.staleness, oldest) != version:
                yield Action(ActionKind.RETIRE, step, version=version)
    while updated < steps.stop:
        yield from _update(updated)
        updated += 1


def _passes(plan: PlanFields, stage: int, steps: range) -> Iterator[tuple[ActionKind, int, int]]:
    """Yield the passes of a block with their step and micro-batch."""
    each = plan.microbatches
    per_flush = [range(step * each, (step + 1) * each) for step in steps]
    if not plan.flush:
        per_flush = [range(steps.start * each, steps.stop * each)]
    warm_up = plan.pipeline.warm_up if plan.pipeline else None
    ahead = warm_up(stage, plan.pp, each) if warm_up else 0
    for numbers in per_flush:
        forwards, backwards = iter(numbers), iter(numbers)
        first = min(ahead, len(numbers))
        order = chain(
            repeat((ActionKind.FORWARD, forwards), first),
            chain.from_iterable(
                ((ActionKind.FORWARD, forwards), (ActionKind.BACKWARD, backwards))
                for _ in range(len(numbers) - first)
            ),
            repeat((ActionKind.BACKWARD, backwards), first),
        )
        for kind, source in order:
            step, microbatch = divmod(next(source), each)
            yield kind, step, microbatch


def _with_links(action: Action, stage: int, stages: int) -> Iterator[Action]:
    """Yield a pass between the actions that receive its input and send its output."""
    forward = action.kind is ActionKind.FORWARD
    receives, sends = (
        (ActionKind.RECEIVE_ACTIVATION, ActionKind.SEND_ACTIVATION)
        if forward
        else (ActionKind.RECEIVE_GRADIENT, ActionKind.SEND_GRADIENT)
    )
    before, after = (stage > 0, stage < stages - 1) if forward else (stage < stages - 1, stage > 0)
    if before:
        yield action._replace(kind=receives)
    yield action
    if after:
        yield action._replace(kind=sends)


def _update(step: int) -> Iterator[Action]:
    yield Action(ActionKind.UPDATE, step)
    yield Action(ActionKind.PUBLISH, step, version=step + 1)
