"""The program of a rank: its actions in a block of steps, as data.

Delayed data parallelism, GroPipe, PipeDream-2BW and PipeDream are one recurrence, with U an
optimizer, g_t the gradient of step t and d the plan's ``staleness``:

    V(t + 1) = V(t) + U(mean over replicas of g_t(V(max(0, t - d))))

A program gives the version V of the weights for each pass, and applies an update just before the
first forward pass that needs it. With ``staleness=1`` the all-reduce of step t overlaps step t + 1
(F, B: passes of a step, with the version they use; R: all-reduce; U: update, to a version)::

    staleness=0   F0 B0 R0 U1 F1 B1 R1 U2 F2 B2 R2 U3
    staleness=1   F0 B0 R0 F0 B0 R1 U1 F1 B1 R2 U2 U3

The engine executes the programs of plans that delay or compress; the simulator takes the programs
of all plans. Without a pipeline, a program is gradient accumulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.plan.schedules import Action, ActionKind, one_forward_one_backward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.fields import PlanFields

__all__ = ["max_pending_sends", "rank_program", "version_of"]

#: passes that complete a stage's gradients of a micro-batch
_COMPLETING: Final = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
_NO_MESSAGES: Final = (None, None)


def version_of(step: int, staleness: int, oldest: int = 0) -> int:
    """Return the version of the weights that ``step`` computes with.

    Version t has the updates of all steps before t. ``oldest`` is the oldest version that exists: 0
    unless training resumed from a checkpoint with fewer versions.
    """
    return max(oldest, step - staleness)


def max_pending_sends(stages: int) -> int:
    """Return the largest number of unreceived messages in one direction of a stage."""
    return stages + 1


def rank_program(plan: PlanFields, rank: int, steps: range, *, oldest: int = 0) -> Iterator[Action]:
    """Yield the actions of rank ``rank`` of a pipeline in a block of ``steps``, in order.

    A block starts and ends with no passes in flight and all updates applied: with version
    ``steps.start`` and the older versions that later steps need. Blocks do not change the version
    that a step computes with.
    """
    updated, own, staleness = steps.start, plan.stages_of(rank), plan.staleness
    messages, last = _messages(plan, own), plan.microbatches - 1
    incomplete = len(own)  # number of stages with incomplete gradients of the step
    for step, kind, stage, microbatch in _passes(plan, rank, steps):
        version = version_of(step, staleness, oldest)
        if kind is ActionKind.FORWARD:
            while updated < version:
                yield from _update(updated)
                updated += 1
        received, sent = messages.get((kind, stage), _NO_MESSAGES)
        if received is not None:
            yield Action(received, step, microbatch, version, stage)
        yield Action(kind, step, microbatch, version, stage)
        completes = microbatch == last and kind in _COMPLETING
        reduction = _reduction(plan, step, stage) if completes else []
        if sent is not None:
            at = len(reduction) if reduction and _sends_last(plan) else 0
            reduction.insert(at, Action(sent, step, microbatch, version, stage))
        yield from reduction
        incomplete -= completes
        if not incomplete:
            incomplete = len(own)
            for each in own if plan.sync == "blocking" else ():
                yield Action(ActionKind.REDUCE, step, stage=each)
            if version_of(step + 1, plan.staleness, oldest) != version:
                yield Action(ActionKind.RETIRE, step, version=version)
    while updated < steps.stop:
        yield from _update(updated)
        updated += 1


def _reduction(plan: PlanFields, step: int, stage: int) -> list[Action]:
    """Return the gradient reduction after the last backward pass of ``stage`` in ``step``.

    Torch's pipeline runtimes wait for the reduction of a stage before the next pass.
    """
    if plan.sync == "blocking":
        return []
    reduce = Action(ActionKind.REDUCE, step, stage=stage)
    if plan.pp == 1 or plan.dp == 1 or plan.delays_or_compresses:
        return [reduce]
    return [reduce, Action(ActionKind.AWAIT, step, stage=stage)]


def _sends_last(plan: PlanFields) -> bool:
    """Return whether a stage sends gradients of inputs after the reduction of weight gradients.

    DistributedDataParallel waits for its all-reduces within the backward pass, before torch's
    runtime can send. FSDP reduces after the pass.
    """
    return not plan.zero and not plan.delays_or_compresses


def _passes(
    plan: PlanFields, rank: int, steps: range
) -> Iterator[tuple[int, ActionKind, int, int]]:
    """Yield step, kind, stage and micro-batch (its index in the step) of a block's passes."""
    each = plan.microbatches
    order = plan.pipeline.order if plan.pipeline else one_forward_one_backward
    if plan.flush:
        passes = [*order(rank, plan.pp, plan.stages, each)]
        for step in steps:
            for kind, stage, number in passes:
                yield step, kind, stage, number
        return
    for kind, stage, number in order(rank, plan.pp, plan.stages, each * len(steps)):
        step, microbatch = divmod(number, each)
        yield steps.start + step, kind, stage, microbatch


def _messages(
    plan: PlanFields, own: tuple[int, ...]
) -> dict[tuple[ActionKind, int], tuple[ActionKind | None, ActionKind | None]]:
    """Return the receive of the input and the send of the output, by a pass's kind and stage."""
    last = plan.pipeline_stages - 1
    messages = dict[tuple[ActionKind, int], tuple[ActionKind | None, ActionKind | None]]()
    for stage in own:
        before = stage > 0 and stage - 1 not in own
        after = stage < last and stage + 1 not in own
        messages[ActionKind.FORWARD, stage] = (
            ActionKind.RECEIVE_ACTIVATION if before else None,
            ActionKind.SEND_ACTIVATION if after else None,
        )
        for kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
            messages[kind, stage] = (
                ActionKind.RECEIVE_GRADIENT if after else None,
                ActionKind.SEND_GRADIENT if before else None,
            )
    return messages


def _update(step: int) -> Iterator[Action]:
    yield Action(ActionKind.UPDATE, step)
    yield Action(ActionKind.PUBLISH, step, version=step + 1)
