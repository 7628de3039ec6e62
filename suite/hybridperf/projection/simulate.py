"""Simulate the programs of a pipeline's ranks: when each action starts and ends, and what waits.

With how many steps and micro-batches to simulate so that the last steps are steady.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.plan.schedules import ActionKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf.plan.schedules import Action

__all__ = [
    "PASSES",
    "Bucket",
    "Costs",
    "Hop",
    "Round",
    "Timeline",
    "fewer_microbatches",
    "settled_round",
    "settling_plans",
    "simulate",
    "simulated_steps",
]


class Hop(NamedTuple):
    """A message between neighbouring stages. Those on wires of one name queue."""

    wire: str
    occupied_s: float  #: for which the wire takes no other message
    latency_s: float  #: from then to its arrival


class Bucket(NamedTuple):
    """Gradients of a stage that replicas average in one collective."""

    ready_s: float  #: before the end of the stage's last backward pass in a step; 0: at its end
    seconds: float  #: time of the collective


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the actions of a pipeline's ranks, in seconds."""

    forward_s: tuple[float, ...]  #: forward pass by stage
    backward_s: tuple[float, ...]  #: whole backward pass by stage
    input_s: tuple[float, ...]  #: half of the backward pass, for gradients of inputs, by stage
    weight_s: tuple[float, ...]  #: half of the backward pass, for gradients of weights, by stage
    activations: tuple[Hop | None, ...]
    #: messages to the next stage by sending stage; None to a stage on the same rank
    gradients: tuple[Hop | None, ...]  #: messages to the previous stage by sending stage
    buckets: tuple[tuple[Bucket, ...], ...]  #: buckets by stage, in the order of their starts
    update_s: tuple[float, ...]  #: update by rank
    clip_s: float | None = None
    #: sum of the gradient's norm over the ranks, for which all wait; None without clipping
    turns: tuple[int, ...] = ()
    #: number by rank: ranks of one number average gradients in turns; empty: no rank waits
    averaging_work: float = 0.0
    #: slowdown of passes that overlap an average, over the time of the average; more than 1 if
    #: both at once take longer than one after the other


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each action of each rank starts and ends, in seconds from the first one.

    An update starts once its gradients are averaged: its rank has waited for them before.

    A rank computes, or waits. What it waits for is under way, which is *exposed* communication, or
    does not exist yet, which is idle time: the pipeline's bubble. Processor time of communication
    that makes passes and updates longer is exposed, too. A rank whose program is at its end does
    nothing.
    """

    programs: tuple[Sequence[Action], ...]  #: programs by rank
    start_s: tuple[list[float], ...]  #: starts by rank and action
    end_s: tuple[list[float], ...]  #: ends by rank and action
    exposed_at_s: tuple[dict[int, float], ...]  #: exposed communication by rank and action
    idle_s: tuple[dict[int, float], ...]  #: idle time by rank and step

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
    of gradients are averaged one after another, overlapped with passes, from the last backward pass
    of their stage. An average also costs processor time: a rank spends it while it waits, and the
    rest delays its next pass or update.

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
        # Processor time beyond the duration of an average is lost only while passes compute.
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


_ROUNDS: Final = 3  #: of as many micro-batches as ranks, after which a pipeline keeps no more
_FEWEST: Final = 4  #: rounds that are simulated at first, and looked at for whether they settle
_MEASURED: Final = 2  #: steps of which the mean is taken


def fewer_microbatches(plan: ParallelPlan, rounds: int = _ROUNDS) -> ParallelPlan:
    """Return ``plan`` with ``rounds`` of micro-batches, if it has more and they are alike.

    A round has as many micro-batches as there are ranks. After three of them no more activations
    are kept; only with gpipe there are.
    """
    count = min(plan.microbatches, rounds * plan.pp + plan.microbatches % plan.pp)
    if plan.stages > 1 and plan.microbatches % plan.pp:  # rounds of another length
        count = plan.microbatches
    if plan.staleness and plan.dp > 1:  # averages may take as long as all passes of a step
        count = plan.microbatches
    return replace(plan, microbatches=count)


def settling_plans(plan: ParallelPlan) -> Iterator[ParallelPlan]:
    """Yield ``plan`` with more and more rounds of micro-batches, at last with all of them.

    With gpipe the forward passes of a step are over before its backward passes begin, so no round
    shows what all of them take.
    """
    rounds = _FEWEST
    while plan.schedule != "gpipe":
        fewer = fewer_microbatches(plan, rounds)
        if fewer.microbatches == plan.microbatches:
            break
        yield fewer
        rounds *= 2
    yield plan


@dataclass(frozen=True, slots=True)
class Round:
    """Time that one more round of micro-batches adds to a step."""

    seconds: float
    exposed_s: tuple[float, ...]  #: exposed communication by rank
    spread_s: float  #: spread of the added time over this round and later rounds


def settled_round(timeline: Timeline, plan: ParallelPlan, step: int) -> Round | None:
    """Return what a round adds to ``step`` of the simulated ``plan``; None if no rounds are alike.

    The passes before the last forward pass of each rank are held against the same passes some
    rounds before, half of all. When a pass begins depends on earlier ones by sums and maxima, so if
    all passes of a round are later by at least d and by at most D, then so are all passes of any
    later round (Baccelli et al. 1992, *Synchronization and Linearity*: maps that are monotone and
    homogeneous). So the difference of both bounds the error of every round to come.
    """
    apart = plan.microbatches // plan.pp // 2
    later: list[float] = []
    exposed_s = []
    for rank, program in enumerate(timeline.programs):
        if (rounds := _last_rounds(program, plan, step, apart + 1)) is None:
            return None
        start_s, waits_s = timeline.start_s[rank], timeline.exposed_at_s[rank]
        first, last = rounds[0], rounds[-1]
        later += (start_s[at] - start_s[before] for before, at in zip(first, last, strict=True))
        counted = range(first[-1] + 1, last[-1] + 1)
        exposed_s.append(sum(s for at, s in waits_s.items() if at in counted) / apart)
    least, most = min(later), max(later)
    return Round((least + most) / 2 / apart, tuple(exposed_s), (most - least) / apart)


def _last_rounds(
    program: Sequence[Action], plan: ParallelPlan, step: int, count: int
) -> list[list[int]] | None:
    """Return where the passes of ``count`` rounds are that end with the last forward of ``step``.

    None if these rounds are not alike.
    """
    end = len(program) - 1
    while program[end].step != step or program[end].kind is not ActionKind.FORWARD:
        end -= 1
    places: list[int] = []
    each = 0  #: passes of a round, once it is known
    for at in range(end, -1, -1):
        if program[at].kind not in PASSES:
            continue
        if not each and _is_a_round_before(program[at], program[end], plan):
            each = len(places)
        if each and not _is_a_round_before(program[at], program[places[-each]], plan):
            return None
        places.append(at)
        if each and len(places) == count * each:
            places.reverse()
            return [places[start : start + each] for start in range(0, len(places), each)]
    return None


def _is_a_round_before(one: Action, other: Action, plan: ParallelPlan) -> bool:
    """Return whether ``one`` is the same pass as ``other``, of the round before."""
    steps = 0 if plan.flush else other.step - one.step
    same = (one.kind, one.stage, one.step + steps) == (other.kind, other.stage, other.step)
    return same and other.microbatch + steps * plan.microbatches - one.microbatch == plan.pp


def simulated_steps(plan: ParallelPlan) -> tuple[range, range]:
    """Return the steps to simulate, and the steps whose mean is the steady state.

    The first steps fill the pipeline and the versions of the weights; the last step drains it. The
    first stage may go on for as many steps before it waits for later ones that average longer.
    """
    fill = plan.staleness * (1 + (plan.pp > 1)) + -(-(plan.pp - 1) // plan.microbatches) * (
        not plan.flush
    )
    return range(fill + 2 + _MEASURED), range(fill + 1, fill + 1 + _MEASURED)
