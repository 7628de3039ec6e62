"""The program of a rank of a pipeline: what it does in a block of steps, as data.

Delayed data parallelism, GroPipe, PipeDream-2BW and PipeDream are one recurrence, with U an
optimizer, g_t the gradient of step t and d the plan's ``staleness``:

    V(t + 1) = V(t) + U(mean over replicas of g_t(V(max(0, t - d))))

A program states which version V of the weights each pass computes with, and applies updates as late
as the forward pass that needs them. The engine executes those of plans that delay or compress;
those of all plans are simulated. Without a pipeline a program is that of gradient accumulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.plan.schedules import Action, ActionKind, one_forward_one_backward

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.plan.fields import PlanFields

__all__ = ["most_sends", "rank_program", "version_of"]

#: passes after which a stage's gradients of a micro-batch are complete
_COMPLETING: Final = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
_NO_MESSAGES: Final = (None, None)


def version_of(step: int, staleness: int, oldest: int = 0) -> int:
    """Return the version of the weights that ``step`` computes with.

    Version t has the updates of the steps before t. None older than ``oldest`` exists, which is 0
    unless training resumed from a checkpoint with fewer versions.
    """
    return max(oldest, step - staleness)


def most_sends(stages: int) -> int:
    """Return the largest number of messages in one direction that a stage sends unreceived."""
    return stages + 1


def rank_program(plan: PlanFields, rank: int, steps: range, *, oldest: int = 0) -> Iterator[Action]:
    """Yield the actions of rank ``rank`` of a pipeline in a block of ``steps``, in order.

    At the start and the end of a block no passes are in flight and all updates have been applied,
    so version ``steps.start`` is there, and older ones that later steps need. The block does not
    change which version a step computes with.
    """
    updated, own, staleness = steps.start, plan.stages_of(rank), plan.staleness
    messages, last = _messages(plan, own), plan.microbatches - 1
    incomplete = len(own)  # stages whose gradients of the step are
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
        averaging = _averaging(plan, step, stage) if completes else []
        if sent is not None:  # before the gradients of the step are averaged, unless one waits
            at = len(averaging) if averaging and _sends_last(plan) else 0
            averaging.insert(at, Action(sent, step, microbatch, version, stage))
        yield from averaging
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


def _averaging(plan: PlanFields, step: int, stage: int) -> list[Action]:
    """Return what follows the last backward pass of ``stage`` in ``step``.

    Torch's runtimes of pipelines wait for the averages of a stage before they go on.
    """
    if plan.sync == "blocking":
        return []
    reduce = Action(ActionKind.REDUCE, step, stage=stage)
    if plan.pp == 1 or plan.dp == 1 or plan.delays_or_compresses:
        return [reduce]
    return [reduce, Action(ActionKind.AWAIT, step, stage=stage)]


def _sends_last(plan: PlanFields) -> bool:
    """Return whether a stage sends gradients of inputs only once those of weights are averaged.

    DistributedDataParallel waits for its all-reduces at the end of a backward pass, and only then
    does a runtime of torch get to send. FSDP averages after the pass.
    """
    return not plan.zero and not plan.delays_or_compresses


def _passes(
    plan: PlanFields, rank: int, steps: range
) -> Iterator[tuple[int, ActionKind, int, int]]:
    """Yield the passes of a block: step, kind, stage and micro-batch, counted in each step."""
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
    """Return the actions that receive a pass's input and send its output to another rank.

    By kind and stage of the pass.
    """
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
