"""Process groups that record what a rank issues, and whether NCCL's order would let it end.

NCCL executes the operations of a group in the order in which a rank issues them, each after the one
before has ended; messages that are batched are one operation. (torch's warning: with ``device_id``,
messages that are not batched are "independent collective ops, and are thus serialized with all
other ops on this ProcessGroup".) On gloo, plans end that would hang so. What ranks issued on gloo
is therefore executed again in that order, without computing: whether it hangs does not depend on
how fast the machine is.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

__all__ = ["Event", "find_hang", "read_trace", "recorded_groups", "write_trace"]

_BACKEND: Final = "recorded"
_MESSAGES: Final = ("send", "recv")
#: in which all ranks of a group take part; names of several versions of torch
_COLLECTIVES: Final = (
    *("allreduce", "allreduce_coalesced", "barrier", "broadcast", "gather", "reduce", "scatter"),
    *("allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced"),
    *("all_gather_single", "all_gather_single_coalesced", "gather_single"),
    *("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    *("reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("alltoall", "alltoall_base", "all_to_all_single"),
)


class Event(NamedTuple):
    """What a rank does: it issues a collective or a message, or waits for one."""

    number: int  #: of the operation on its rank; all messages of a batch have the same
    kind: str  #: ``wait``, ``send``, ``recv``, or the name of a collective
    group: str = ""  #: name, the same on all of its ranks
    ranks: tuple[int, ...] = ()  #: of the group
    peer: int = -1  #: the other rank of a message


class _Recorder:
    """What this rank has done since it was last written."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._batch: int | None = None
        self._operations = 0

    def issue(self, kind: str, group: str, ranks: tuple[int, ...], peer: int) -> int:
        """Record an operation, and return its number."""
        number = self._next() if self._batch is None else self._batch
        self.events.append(Event(number, kind, group, ranks, peer))
        return number

    def wait(self, number: int) -> None:
        """Record that this rank waits for an operation."""
        self.events.append(Event(number, "wait"))

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Let all messages issued in the body be one operation."""
        self._batch = self._next()
        yield
        self._batch = None

    def _next(self) -> int:
        self._operations += 1
        return self._operations


_RECORDER: Final = _Recorder()


def write_trace(path: Path) -> None:
    """Write what this rank has done since the last call."""
    path.write_text(json.dumps(_RECORDER.events))
    _RECORDER.events.clear()


def read_trace(path: Path) -> list[Event]:
    """Return what `write_trace` wrote."""
    return [
        Event(number, kind, group, tuple(ranks), peer)
        for number, kind, group, ranks, peer in json.loads(path.read_text())
    ]


class _Work(dist.Work):
    """An operation of gloo's; waiting for it is recorded."""

    def __init__(self, work: Any, number: int) -> None:
        super().__init__()
        self._work, self._number = work, number

    def wait(self, *timeout: Any) -> bool:
        _RECORDER.wait(self._number)
        return bool(self._work.wait(*timeout))

    def get_future(self) -> Any:
        """Return the operation's future, and wait as of now: when that is waited for is unseen."""
        _RECORDER.wait(self._number)
        return self._work.get_future()


class _RecordedGroup(dist.ProcessGroup):
    """A process group on gloo that records what its rank issues."""

    def __init__(self, options: Any) -> None:
        rank, size = options.group_rank, options.group_size
        super().__init__(rank, size)
        self._ranks = tuple(options.global_ranks_in_group or range(size))
        self._name = str(options.group_id)
        gloo = distributed_c10d.ProcessGroupGloo(options.store, rank, size, options.timeout)
        self._on_gloo = dist.ProcessGroup(options.store, rank, size)
        for group in (self._on_gloo, self):  # this one, for what torch asks of a group besides
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            group._set_group_name(options.group_id)

    def issue(self, kind: str, *arguments: Any, **options: Any) -> _Work:
        """Record an operation and start it."""
        peer = self._ranks[arguments[1]] if kind in _MESSAGES else -1
        number = _RECORDER.issue(kind, self._name, self._ranks, peer)
        return _Work(getattr(self._on_gloo, kind)(*arguments, **options), number)


def _issues(kind: str) -> Callable[..., _Work]:
    """Return the method that issues operations of this kind."""
    return lambda group, *arguments, **options: group.issue(kind, *arguments, **options)


for _kind in (*_COLLECTIVES, *_MESSAGES):
    if hasattr(dist.ProcessGroup, _kind):
        setattr(_RecordedGroup, _kind, _issues(_kind))


@contextlib.contextmanager
def recorded_groups() -> Iterator[None]:
    """Let the process groups of the processor that are made in the body record."""
    dist.Backend.register_backend(
        _BACKEND, lambda options, _: _RecordedGroup(options), extended_api=True, devices=["cpu"]
    )
    batch = dist.batch_isend_irecv

    def batch_recorded(operations: list[dist.P2POp]) -> list[dist.Work]:
        with _RECORDER.batch():
            return batch(operations)

    with (
        mock.patch.object(dist, "get_default_backend_for_device", return_value=_BACKEND),
        mock.patch.object(dist, "batch_isend_irecv", batch_recorded),
    ):
        yield


class _Rank:
    """A rank that does again what it has recorded."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.left = deque(events)
        self.queues: dict[str, deque[list[Event]]] = defaultdict(deque)  # operations, by group
        self.ended = set[int]()

    def go(self) -> bool:
        """Issue operations until this rank has to wait; return whether it did anything."""
        before = len(self.left)
        while self.left and (self.left[0].kind != "wait" or self.left[0].number in self.ended):
            event = self.left.popleft()
            if event.kind == "wait":
                continue
            queue = self.queues[event.group]
            if queue and queue[-1][0].number == event.number:
                queue[-1].append(event)  # to its batch
            else:
                queue.append([event])
        return len(self.left) < before

    def executes(self, group: str) -> list[Event]:
        """Return what is left of the operation that this rank executes in ``group``."""
        return self.queues[group][0] if self.queues[group] else []

    def end(self, event: Event) -> None:
        """End a message or a collective, and the operation with the last of its messages."""
        operation = self.executes(event.group)
        operation.remove(event)
        if not operation:
            self.ended.add(event.number)
            self.queues[event.group].popleft()


def find_hang(traces: Sequence[Sequence[Event]]) -> str | None:
    """Return where ranks, each with what it recorded, hang in the order of NCCL; None if they end.

    A message ends when both ranks execute it, and a collective when all ranks of its group do. A
    rank that waits issues nothing: that is stricter than NCCL, where its device waits.
    """
    ranks = [_Rank(events) for events in traces]
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(ranks):
            moved |= rank.go()
            for group in list(rank.queues):
                for event in [*rank.executes(group)]:
                    moved |= _end(ranks, number, event)
    stuck = [(number, rank) for number, rank in enumerate(ranks) if any(rank.queues.values())]
    return "; ".join(f"rank {number} executes {_text(rank)}" for number, rank in stuck) or None


def _end(ranks: Sequence[_Rank], number: int, event: Event) -> bool:
    """End what rank ``number`` executes, if others execute their part of it; say whether so."""
    if event.kind == "recv":
        return False  # the sender ends it
    if event.kind == "send":
        others = ranks[event.peer].executes(event.group)
        wanted = [each for each in others if each.kind == "recv" and each.peer == number][:1]
        if wanted:
            ranks[number].end(event)
            ranks[event.peer].end(wanted[0])
        return bool(wanted)
    executed = [[each.kind for each in ranks[n].executes(event.group)] for n in event.ranks]
    together = all(kinds == [event.kind] for kinds in executed)
    for member in event.ranks if together else ():
        ranks[member].end(ranks[member].executes(event.group)[0])
    return together


def _text(rank: _Rank) -> str:
    heads = [queue for queue in rank.queues.values() if queue]
    return ", ".join(
        f"{event.kind}{f' {event.peer}' if event.peer >= 0 else ''} before {len(queue) - 1} others"
        for queue in heads
        for event in queue[0]
    )
