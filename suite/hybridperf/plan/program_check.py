"""Check the programs of a pipeline's stages by executing them together, without computing."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from hybridperf.plan.program import Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.plan.fields import PlanFields

__all__ = ["find_fault", "most_sends"]


def most_sends(stages: int) -> int:
    """Return how many messages in one direction a stage may have sent that are not received."""
    return stages + 1


#: by the action that receives: the action that sends, and the offset of the stage that does
_SENDERS: Final = {
    ActionKind.RECEIVE_ACTIVATION: (ActionKind.SEND_ACTIVATION, -1),
    ActionKind.RECEIVE_GRADIENT: (ActionKind.SEND_GRADIENT, 1),
}


def find_fault(programs: Sequence[Iterable[Action]], plan: PlanFields, steps: range) -> str | None:
    """Return what is wrong with the ``programs`` of all stages of a pipeline, or None.

    They are executed without computing: a stage waits for what it receives, for room among its
    unreceived messages, and for all stages at an update, since clipping adds up the norms of all.
    Every pass must compute with a version that is alive, a backward pass with that of its forward
    pass, and every step be reduced once and applied once, in order.
    """
    stages = [_Stage(number, deque(program)) for number, program in enumerate(programs)]
    while any(stage.program for stage in stages):
        moved = False
        for stage in stages:
            while stage.program and stage.may_go(stages):
                moved = True
                if (fault := stage.go(stages)) is not None:
                    return f"stage {stage.number}: {fault}"
        waiting = [stage for stage in stages if stage.program]
        if len(waiting) == len(stages) and all(
            stage.program[0].kind is ActionKind.UPDATE for stage in stages
        ):
            moved = True
            for stage in stages:
                if (fault := stage.update()) is not None:
                    return f"stage {stage.number}: {fault}"
        if not moved and waiting:
            at = ", ".join(f"{stage.number} at {_text(stage.program[0])}" for stage in waiting)
            return f"deadlock: stage {at}"
    for stage in stages:
        expected = Counter((step, m) for step in steps for m in range(plan.microbatches))
        if stage.finished != expected:
            return f"stage {stage.number}: not every micro-batch has one forward and backward pass"
        if any(stage.sent.values()):
            return f"stage {stage.number}: sends messages that nobody receives"
        if stage.applied != list(steps):
            return f"stage {stage.number}: applies the gradients of steps {stage.applied}"
    return None


class _Stage:
    """A stage whose program is executed without computing."""

    def __init__(self, number: int, program: deque[Action]) -> None:
        self.number, self.program = number, program
        self.sent: dict[ActionKind, deque[tuple[int, int]]] = {
            kind: deque() for kind, _ in _SENDERS.values()
        }
        self.live: dict[tuple[int, int], int] = {}  # version, by micro-batch in flight
        self.finished = Counter[tuple[int, int]]()
        self.reduced: list[int] = []
        self.applied: list[int] = []
        self.retired = set[int]()
        self.newest: int | None = None

    def may_go(self, stages: Sequence[_Stage]) -> bool:
        """Return whether the next action need not wait; updates wait for all stages."""
        action = self.program[0]
        if action.kind in _SENDERS:
            kind, offset = _SENDERS[action.kind]
            return bool(stages[self.number + offset].sent[kind])
        if action.kind in self.sent:
            return len(self.sent[action.kind]) < most_sends(len(stages))
        return action.kind is not ActionKind.UPDATE

    def go(self, stages: Sequence[_Stage]) -> str | None:
        """Execute the next action; return what is wrong with it, or None."""
        action = self.program.popleft()
        which = action.step, action.microbatch
        wrong = f"{_text(action)} is out of order"
        match action.kind:
            case ActionKind.RECEIVE_ACTIVATION | ActionKind.RECEIVE_GRADIENT:
                kind, offset = _SENDERS[action.kind]
                return None if stages[self.number + offset].sent[kind].popleft() == which else wrong
            case ActionKind.SEND_ACTIVATION | ActionKind.SEND_GRADIENT:
                self.sent[action.kind].append(which)
            case ActionKind.FORWARD:
                known = action.version if self.newest is None else self.newest
                if action.version in self.retired or action.version > known:
                    return f"{_text(action)} computes with version {action.version}, not alive"
                self.live[which] = action.version
            case ActionKind.BACKWARD:
                if self.live.pop(which, None) != action.version or action.version in self.retired:
                    return wrong
                self.finished[which] += 1
            case ActionKind.REDUCE:
                self.reduced.append(action.step)
            case ActionKind.PUBLISH:
                self.newest = action.version
            case ActionKind.RETIRE:
                self.retired.add(action.version)
        return None

    def update(self) -> str | None:
        """Apply the gradients of a step, which must be the next one reduced."""
        step = self.program.popleft().step
        if len(self.reduced) <= len(self.applied) or self.reduced[len(self.applied)] != step:
            return f"the gradients of step {step} are applied before they are reduced"
        self.applied.append(step)
        return None


def _text(action: Action) -> str:
    return f"{action.kind.value} of step {action.step}, micro-batch {action.microbatch}"
