"""Check the programs of a pipeline's ranks by executing them together, without computing."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Final

from hybridperf.plan.program import max_pending_sends
from hybridperf.plan.schedules import Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.plan.fields import PlanFields

#: by the action that receives: the action that sends, and the offset of the stage that does
_SENDERS: Final = {
    ActionKind.RECEIVE_ACTIVATION: (ActionKind.SEND_ACTIVATION, -1),
    ActionKind.RECEIVE_GRADIENT: (ActionKind.SEND_GRADIENT, 1),
}
_SENDS: Final = {kind for kind, _ in _SENDERS.values()}


def find_fault(programs: Sequence[Iterable[Action]], plan: PlanFields, steps: range) -> str | None:
    """Return what is wrong with the ``programs`` of all ranks of a pipeline, or None.

    They are executed without computing: a rank waits for what it receives, for room among its
    unreceived messages, and for all ranks at an update, since clipping adds up the norms of all.
    Every pass must compute with a version that is alive, a backward pass with that of its forward
    pass, and the gradients of every step be averaged once and applied once, in order.
    """
    messages = defaultdict[tuple[ActionKind, int], deque[tuple[int, int]]](deque)
    ranks = [
        _Rank(number, plan, deque(program), messages) for number, program in enumerate(programs)
    ]
    while any(rank.program for rank in ranks):
        moved = False
        for rank in ranks:
            while rank.program and rank.may_go():
                moved = True
                if (fault := rank.go()) is not None:
                    return f"rank {rank.number}: {fault}"
        waiting = [rank for rank in ranks if rank.program]
        if len(waiting) == len(ranks) and all(
            rank.program[0].kind is ActionKind.UPDATE for rank in ranks
        ):
            moved = True
            for rank in ranks:
                if (fault := rank.update()) is not None:
                    return f"rank {rank.number}: {fault}"
        if not moved and waiting:
            at = ", ".join(f"{rank.number} at {_text(rank.program[0])}" for rank in waiting)
            return f"deadlock: rank {at}"
    for rank in ranks:
        expected = Counter(
            (stage, step, m)
            for stage in plan.stages_of(rank.number)
            for step in steps
            for m in range(plan.microbatches)
        )
        if rank.finished != expected:
            return f"rank {rank.number}: not every micro-batch has one forward and backward pass"
        if rank.applied != list(steps):
            return f"rank {rank.number}: applies the gradients of steps {rank.applied}"
    for (_, stage), left in messages.items():
        if left:
            return f"stage {stage}: sends messages that nobody receives"
    return None


class _Rank:
    """A rank whose program is executed without computing."""

    def __init__(
        self,
        number: int,
        plan: PlanFields,
        program: deque[Action],
        messages: dict[tuple[ActionKind, int], deque[tuple[int, int]]],
    ) -> None:
        self.number, self.program, self.messages = number, program, messages
        self.own, self.most = plan.stages_of(number), max_pending_sends(plan.pipeline_stages)
        self.microbatches = plan.microbatches
        self.live: dict[tuple[int, int, int], int] = {}  # version, by micro-batch in flight
        self.halved = set[tuple[int, int, int]]()  # only gradients of weights are missing
        self.finished = Counter[tuple[int, int, int]]()
        self.complete = Counter[tuple[int, int]]()  # finished micro-batches, by stage and step
        self.reduced: dict[int, list[int]] = {stage: [] for stage in self.own}
        self.applied: list[int] = []
        self.retired = set[int]()
        self.newest: int | None = None

    def may_go(self) -> bool:
        """Return whether the next action need not wait; updates wait for all ranks."""
        action = self.program[0]
        if action.kind in _SENDERS:
            kind, offset = _SENDERS[action.kind]
            return bool(self.messages[kind, action.stage + offset])
        if action.kind in _SENDS:
            return len(self.messages[action.kind, action.stage]) < self.most
        return action.kind is not ActionKind.UPDATE

    def go(self) -> str | None:
        """Execute the next action; return what is wrong with it, or None."""
        action = self.program.popleft()
        message = action.step, action.microbatch
        which = action.stage, *message
        wrong = f"{_text(action)} is out of order"
        match action.kind:
            case ActionKind.RECEIVE_ACTIVATION | ActionKind.RECEIVE_GRADIENT:
                kind, offset = _SENDERS[action.kind]
                sent = self.messages[kind, action.stage + offset].popleft()
                return None if sent == message else wrong
            case ActionKind.SEND_ACTIVATION | ActionKind.SEND_GRADIENT:
                self.messages[action.kind, action.stage].append(message)
            case ActionKind.FORWARD:
                known = action.version if self.newest is None else self.newest
                if action.version in self.retired or action.version > known:
                    return f"{_text(action)} computes with version {action.version}, not alive"
                self.live[which] = action.version
            case ActionKind.BACKWARD | ActionKind.BACKWARD_INPUT:
                if self.live.get(which) != action.version or action.version in self.retired:
                    return wrong
                if action.kind is ActionKind.BACKWARD_INPUT:
                    self.halved.add(which)
                else:
                    self._finish(which)
            case ActionKind.BACKWARD_WEIGHT:
                if which not in self.halved or action.version in self.retired:
                    return wrong
                self.halved.remove(which)
                self._finish(which)
            case ActionKind.REDUCE:
                if self.complete[action.stage, action.step] != self.microbatches:
                    return f"{_text(action)} comes before the gradients are complete"
                self.reduced[action.stage].append(action.step)
            case ActionKind.AWAIT:
                if action.step not in self.reduced[action.stage]:
                    return wrong
            case ActionKind.PUBLISH:
                self.newest = action.version
            case ActionKind.RETIRE:
                self.retired.add(action.version)
        return None

    def update(self) -> str | None:
        """Apply the gradients of a step, which must be the next one averaged in all stages."""
        step = self.program.popleft().step
        for reduced in self.reduced.values():
            if reduced[len(self.applied) : len(self.applied) + 1] != [step]:
                return f"the gradients of step {step} are applied before they are averaged"
        self.applied.append(step)
        return None

    def _finish(self, which: tuple[int, int, int]) -> None:
        """Count the micro-batch ``which``, whose gradients are complete."""
        del self.live[which]
        self.finished[which] += 1
        self.complete[which[:2]] += 1


def _text(action: Action) -> str:
    where = f" in stage {action.stage}" if action.stage else ""
    return f"{action.kind.value} of step {action.step}, micro-batch {action.microbatch}{where}"
