"""Simulate the programs of a pipeline's ranks: when each action starts and ends, and what waits."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from hybridperf.plan.actions import ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.plan.actions import Action

__all__ = ["PASSES", "Bucket", "Costs", "Hop", "Timeline", "simulate"]


class Hop(NamedTuple):
    """A message between neighbouring stages. Those on wires of one name queue."""

    wire: str
    occupied_s: float  #: for which the wire takes no other message
    latency_s: float  #: from then to its arrival


class Bucket(NamedTuple):
    """Gradients of a stage that replicas average in one collective."""

    ready_s: float  #: before the end of the stage's last backward pass in a step; 0: at its end
    seconds: float  #: of the collective


@dataclass(frozen=True, slots=True)
class Costs:
    """What the actions of a pipeline's ranks cost, in seconds."""

    forward_s: tuple[float, ...]  #: by stage
    backward_s: tuple[float, ...]  #: by stage: of a whole backward pass
    input_s: tuple[float, ...]  #: by stage: of its half that computes gradients of inputs
    weight_s: tuple[float, ...]  #: by stage: of its half that computes gradients of weights
    activations: tuple[Hop | None, ...]  #: by stage that sends; None to a stage on the same rank
    gradients: tuple[Hop | None, ...]  #: by stage that sends, to the one before
    buckets: tuple[tuple[Bucket, ...], ...]  #: by stage, in the order in which they start
    update_s: tuple[float, ...]  #: by rank
    clip_s: float | None = None
    #: of adding up the gradient's norm over the ranks, which all wait for; None without clipping
    turns: tuple[int, ...] = ()
    #: by rank: those of the same number average gradients in turns; empty: none waits for another
    averaging_work: float = 0.0
    #: seconds by which passes beside an average take longer, over its own; more than 1 if both at
    #: once take longer than one after the other


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each action of each rank starts and ends, in seconds from the first one.

    An update starts once its gradients are averaged: its rank has waited for them before.

    A rank computes, or waits. What it waits for is under way, which is *exposed* communication, or
    does not exist yet, which is idle time: the pipeline's bubble. Processor time of communication
    that makes passes and updates longer is exposed, too. A rank whose program is at its end does
    nothing.
    """

    programs: tuple[Sequence[Action], ...]  #: by rank
    start_s: tuple[list[float], ...]  #: by rank and action
    end_s: tuple[list[float], ...]
    exposed_at_s: tuple[dict[int, float], ...]  #: by rank and action
    idle_s: tuple[dict[int, float], ...]  #: by rank and step

    @property
    def exposed_s(self) -> tuple[dict[int, float], ...]:
        """Return the exposed communication of each rank and step."""
        found: tuple[dict[int, float], ...] = tuple({} for _ in self.programs)
        for program, waits, by_step in zip(self.programs, self.exposed_at_s, found, strict=True):
            for at, seconds in waits.items():
                step = program[at].step
                by_step[step] = by_step.get(step, 0.0) + seconds
        return found

    @property
    def makespan_s(self) -> float:
        """Return when the last rank ends."""
        return max((ends[-1] for ends in self.end_s if ends), default=0.0)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """Return the seconds that each rank computes."""
        return tuple(
            (ends[-1] if ends else 0.0) - sum(exposed.values()) - sum(idle.values())
            for ends, exposed, idle in zip(self.end_s, self.exposed_s, self.idle_s, strict=True)
        )


def simulate(programs: Sequence[Sequence[Action]], costs: Costs) -> Timeline:
    """Return when each action of ``programs``, one for each rank of a pipeline, takes place.

    Messages arrive in the order in which they are sent, while the rank that sends goes on. Buckets
    of gradients are averaged one after another beside the passes, from the last backward pass of
    their stage on, which also takes processor time: a rank spends it while it waits, and what is
    left makes its next pass or update take longer.

    Raises:
        ValueError: if the programs deadlock.
    """
    return _Simulation(programs, costs).run()


class _Simulation:
    """The state of all ranks, each advanced as far as it can go."""

    def __init__(self, programs: Sequence[Sequence[Action]], costs: Costs) -> None:
        self.programs, self.costs = programs, costs
        ranks, stages = len(programs), len(costs.forward_s)
        self.position, self.now = [0] * ranks, [0.0] * ranks
        self.start: tuple[list[float], ...] = tuple([] for _ in range(ranks))
        self.end: tuple[list[float], ...] = tuple([] for _ in range(ranks))
        self.exposed = tuple(defaultdict[int, float](float) for _ in range(ranks))
        self.idle = tuple(defaultdict[int, float](float) for _ in range(ranks))
        self.owed = [0.0] * ranks  # processor time of communication, not spent yet
        self.runnable = [(0.0, rank) for rank in range(ranks)]
        # Messages as (arrival, when they were sent): activations by the stage that receives them,
        # gradients by its complement, which counts from the end of the list.
        self.boxes: list[deque[tuple[float, float]]] = [deque() for _ in range(2 * stages)]
        self.waiting: dict[int, int] = {}  # rank, by index of the box it waits at
        self.wire_free = defaultdict[str, float](float)
        hops = [hop.wire for hop in (*costs.activations, *costs.gradients) if hop is not None]
        self.shared = {wire for wire, count in Counter(hops).items() if count > 1}
        self.turns = costs.turns or tuple(range(ranks))
        self.reducer_free = dict.fromkeys(self.turns, 0.0)
        self.averaged: dict[tuple[int, int], float] = {}  # by rank and step: of its stages so far
        self.worked = defaultdict[tuple[int, int], float](float)  # likewise: their work
        self.ready: dict[int, dict[int, float]] = {}  # by step and rank: when it could clip

    def run(self) -> Timeline:
        """Advance the earliest rank that can go on until all programs are at their end."""
        while self.runnable:
            _, rank = heappop(self.runnable)
            self._advance(rank)
        left = [f"{rank}" for rank, at in enumerate(self.position) if at < len(self.programs[rank])]
        if left:
            raise ValueError(f"the programs deadlock: ranks {', '.join(left)} wait forever")
        return Timeline(tuple(self.programs), self.start, self.end, self.exposed, self.idle)

    def _advance(self, rank: int) -> None:
        """Execute actions of ``rank`` until it has to wait for another one."""
        costs, program, runnable = self.costs, self.programs[rank], self.runnable
        forward_s, backward_s, boxes = costs.forward_s, costs.backward_s, self.boxes
        owed = self.owed
        started, ended = self.start[rank].append, self.end[rank].append
        now, at, count = self.now[rank], self.position[rank], len(program)
        while at < count:
            kind, step, _, _, stage = program[at]
            began = now
            if owed[rank] and kind in PASSES:
                now += self._spend_owed(rank, at)
            if kind is _FORWARD:
                now += forward_s[stage]
            elif kind is _BACKWARD:
                now += backward_s[stage]
            elif kind is _SEND_ACTIVATION or kind is _SEND_GRADIENT:
                forth = kind is _SEND_ACTIVATION
                hop = costs.activations[stage] if forth else costs.gradients[stage]
                assert hop is not None, "the stage it is for is on another rank"
                if hop.wire in self.shared and runnable and runnable[0][0] < now:
                    heappush(runnable, (now, rank))  # others may take the wire before
                    break
                self._transmit(stage + 1 if forth else ~(stage - 1), hop, now)
            elif kind is _RECEIVE_ACTIVATION or kind is _RECEIVE_GRADIENT:
                box = stage if kind is _RECEIVE_ACTIVATION else ~stage
                if not boxes[box]:
                    self.waiting[box] = rank
                    break
                arrival, sent = boxes[box].popleft()
                if arrival > now:
                    idle = sent - now if sent > now else 0.0
                    self.idle[rank][step] += idle
                    self.exposed[rank][at] += arrival - now - idle
                    self._spend_waiting(rank, arrival - now)
                    now = arrival
            elif kind is _BACKWARD_INPUT:
                now += costs.input_s[stage]
            elif kind is _BACKWARD_WEIGHT:
                now += costs.weight_s[stage]
            elif kind is _REDUCE:
                if costs.turns and runnable and runnable[0][0] < now:
                    heappush(runnable, (now, rank))  # others may have their turn before
                    break
                self._reduce(rank, step, stage, now)
            elif kind is _AWAIT:
                now = self._await(rank, at, now)
            elif kind is _UPDATE:
                if costs.clip_s is not None and not self._all_are_ready(rank, step, now):
                    break
                began = self._await(rank, at, now)
                now = self._clip(rank, at, began) + self._spend_owed(rank, at)
                now += costs.update_s[rank]
            started(began)
            ended(now)
            at += 1
        self.now[rank], self.position[rank] = now, at

    def _transmit(self, box: int, hop: Hop, sent: float) -> None:
        """Have a message take its wire from when it is ``sent`` on, or as the wire gets free."""
        self.wire_free[hop.wire] = free = max(sent, self.wire_free[hop.wire]) + hop.occupied_s
        arrival = free + hop.latency_s
        self.boxes[box].append((arrival, sent))
        if box in self.waiting:
            receiver = self.waiting.pop(box)
            heappush(self.runnable, (max(self.now[receiver], arrival), receiver))

    def _reduce(self, rank: int, step: int, stage: int, now: float) -> None:
        """Start the buckets of ``stage``, whose last backward pass of ``step`` ends ``now``."""
        free = self.reducer_free[self.turns[rank]]
        for bucket in self.costs.buckets[stage]:
            free = max(free, now - bucket.ready_s) + bucket.seconds
            self.worked[rank, step] += bucket.seconds * self.costs.averaging_work
        self.reducer_free[self.turns[rank]] = self.averaged[rank, step] = free

    def _await(self, rank: int, at: int, now: float) -> float:
        """Return when the gradients are averaged that ``rank`` has started so far.

        Those are of the step of its action ``at``.
        """
        step = self.programs[rank][at].step
        averaged = self.averaged.get((rank, step), now)
        self.owed[rank] += self.worked.pop((rank, step), 0.0)
        if averaged <= now:
            return now
        self.exposed[rank][at] += averaged - now
        self._spend_waiting(rank, averaged - now)
        return averaged

    def _spend_owed(self, rank: int, at: int) -> float:
        """Charge ``rank`` the processor time that it owes to communication, and return it."""
        seconds, self.owed[rank] = self.owed[rank], 0.0
        if seconds:
            self.exposed[rank][at] += seconds
        return seconds

    def _spend_waiting(self, rank: int, seconds: float) -> None:
        """Have ``rank`` spend processor time on communication while it waits for ``seconds``."""
        # What is more than the time of an average itself is lost only beside passes.
        self.owed[rank] -= min(self.owed[rank], seconds * max(1.0, self.costs.averaging_work))

    def _all_are_ready(self, rank: int, step: int, now: float) -> bool:
        """Return whether the averaged gradients of ``step`` are known on all ranks."""
        ready = self.ready.setdefault(step, {})
        is_new = rank not in ready
        ready[rank] = max(now, self.averaged.get((rank, step), now))
        if len(ready) < len(self.programs):
            return False
        if is_new:  # the others wait for this one
            for other, time in ready.items():
                if other != rank:
                    heappush(self.runnable, (time, other))
        return True

    def _clip(self, rank: int, at: int, now: float) -> float:
        """Return when ``rank`` knows the norm of the whole gradient; ``now`` without clipping."""
        if self.costs.clip_s is None:
            return now
        step = self.programs[rank][at].step
        latest = max(self.ready[step].values())
        self.idle[rank][step] += latest - now
        self.exposed[rank][at] += self.costs.clip_s
        self._spend_waiting(rank, latest - now)
        return latest + self.costs.clip_s


_FORWARD = ActionKind.FORWARD
_BACKWARD = ActionKind.BACKWARD
_BACKWARD_INPUT = ActionKind.BACKWARD_INPUT
_BACKWARD_WEIGHT = ActionKind.BACKWARD_WEIGHT
_SEND_ACTIVATION = ActionKind.SEND_ACTIVATION
_SEND_GRADIENT = ActionKind.SEND_GRADIENT
_RECEIVE_ACTIVATION = ActionKind.RECEIVE_ACTIVATION
_RECEIVE_GRADIENT = ActionKind.RECEIVE_GRADIENT
_REDUCE = ActionKind.REDUCE
_AWAIT = ActionKind.AWAIT
_UPDATE = ActionKind.UPDATE
PASSES = frozenset({_FORWARD, _BACKWARD, _BACKWARD_INPUT, _BACKWARD_WEIGHT})
