"""Input of a rank: its inputs and targets, reading ranks, and worker processes."""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import os
import signal
import time
import traceback
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info

from hybridperf_reference.engine.mesh import coordinates, own_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from numpy.typing import NDArray
    from torch import Tensor

    from hybridperf.plan import ParallelPlan
    from hybridperf.run.access import Batch, TrainingData
    from hybridperf.tasks.data import Samples
    from hybridperf_reference.engine.chain import Objective
    from hybridperf_reference.engine.mesh import Mesh
    from hybridperf_reference.engine.timing import StepTimer

__all__ = [
    "Input",
    "ReadingRole",
    "SampleLengths",
    "TensorParallelInput",
    "balance_tokens",
    "reading_role",
]

_PR_SET_PDEATHSIG: Final = 1
_Share = tuple["NDArray[Any]", "NDArray[Any]", int]
#: sample indices [batch], their epochs [batch], the run's seed


class Input:
    """The inputs and targets of one rank, on its device.

    If the objective reads ahead, worker processes read for training and for evaluation, from the
    first block on until `close`. Otherwise this process reads each batch on demand.
    """

    def __init__(
        self,
        objective: Objective,
        device: torch.device,
        role: ReadingRole,
        lengths: SampleLengths | None = None,
    ) -> None:
        self._objective, self._role, self._lengths = objective, role, lengths
        self._training = _Stream(device, role, ahead=objective.reads_ahead)
        self._evaluation = _Stream(device, role.in_evaluation(), ahead=objective.reads_ahead)

    def train(
        self, data: TrainingData, own: slice, timer: StepTimer, first_step: int = 0
    ) -> Iterator[tuple[Batch, Tensor | None, Tensor | None]]:
        """Yield each batch from ``first_step`` on with this rank's inputs and targets [batch, ...].

        ``own`` selects this rank's samples from the global batch, whose samples are shared among
        replicas by their lengths where those differ. Inputs or targets that the rank
        does not need are None. The tensors do not depend on the reading process: random numbers
        follow from seed, epoch and sample. ``timer`` receives the reading time, divided by the
        number of workers.
        """
        objective, role = self._objective, self._role
        taken: deque[Batch] = deque()

        def shares() -> Iterator[_Share]:
            for batch in data.batches(first_step):
                each = self._lengths.share(data, batch) if self._lengths else batch
                taken.append(each)
                yield each.indices[own], each.epochs[own], data.seed

        def reader() -> _Reader:
            return _TrainingReader(objective, data.samples, role)

        self._training.read_from(data.samples, reader)
        for parts in self._training.parts(shares(), lambda share: len(share[0]), timer):
            with timer.part("prepare"):
                stored = list(parts)
                targets = stored.pop() if role.targets else None
                inputs = objective.prepare(*stored) if role.inputs else None
            yield taken.popleft(), inputs, targets

    def evaluate(
        self, stored: Any, chunks: Iterable[slice]
    ) -> Iterator[tuple[slice, Tensor | None]]:
        """Yield each of ``chunks`` with its inputs [batch, ...], or None if the rank needs none.

        ``stored`` are the evaluation inputs of the data set.
        """
        objective, taken = self._objective, deque[slice]()

        def wanted() -> Iterator[slice]:
            for chunk in chunks:
                taken.append(chunk)
                yield chunk

        def reader() -> _Reader:
            return _EvaluationReader(objective, stored, self._role)

        self._evaluation.read_from(stored, reader)
        for parts in self._evaluation.parts(wanted(), lambda chunk: chunk.stop - chunk.start):
            yield taken.popleft(), parts[0] if parts else None

    def statistics(self) -> dict[str, object]:
        """Return the statistics of the lengths of samples since the last call; empty if equal."""
        return self._lengths.collect() if self._lengths else {}

    def close(self) -> None:
        """End the worker processes; later reading would start new ones."""
        self._training.close()
        self._evaluation.close()


class SampleLengths:
    """The tokens of samples of different lengths, and the replicas that train on them.

    Every rank computes the same from the seed: nothing is communicated.
    """

    def __init__(self, plan: ParallelPlan) -> None:
        self._replicas, self._balanced = plan.dp, plan.balance == "tokens"
        self._shares: list[NDArray[Any]] = []  # [replica]: tokens, of each step

    def share(self, data: TrainingData, batch: Batch) -> Batch:
        """Return ``batch`` in an order whose equal parts are the samples of each replica."""
        lengths = np.empty(len(batch.indices), dtype=np.int64)
        for epoch in dict.fromkeys(batch.epochs.tolist()):
            of_epoch = batch.epochs == epoch
            which = batch.indices[of_epoch], data.seed, epoch
            lengths[of_epoch] = data.samples.inputs.lengths(*which)
        if self._balanced:
            order = balance_tokens(lengths, self._replicas)
            batch = replace(batch, indices=batch.indices[order], epochs=batch.epochs[order])
            lengths = lengths[order]
        self._shares.append(lengths.reshape(self._replicas, -1).sum(axis=1))
        return batch

    def collect(self) -> dict[str, object]:
        """Return the tokens of all replicas, without padding, and their imbalance.

        The imbalance is the most tokens of a replica over their mean, in the mean of all steps.
        """
        shares, self._shares = np.array(self._shares), []
        if not len(shares):
            return {}
        imbalance = (shares.max(axis=1) / shares.mean(axis=1)).mean()
        return {"real_tokens": int(shares.sum()), "token_imbalance": float(imbalance)}


def balance_tokens(lengths: NDArray[np.int64], replicas: int) -> NDArray[np.int64]:
    """Return an order of samples with tokens ``lengths`` whose equal parts have like many tokens.

    The longest samples come first, each to the replica with the fewest tokens that still has room
    (Graham 1969). The samples of a replica stay in the order of the batch.
    """
    parts: list[list[int]] = [[] for _ in range(replicas)]
    with_room = [(0, replica) for replica in range(replicas)]
    for sample in np.argsort(-lengths, kind="stable").tolist():
        tokens, replica = heapq.heappop(with_room)
        parts[replica].append(sample)
        if len(parts[replica]) * replicas < len(lengths):
            heapq.heappush(with_room, (tokens + int(lengths[sample]), replica))
    return np.concatenate([np.sort(part) for part in parts])


class _Read(NamedTuple):
    """The tensors of one request, and the seconds of reading."""

    parts: tuple[Tensor, ...]
    seconds: float


class _Reader(Dataset[_Read]):
    """Dataset for DataLoader workers: one item per request."""

    def __getitem__(self, request: Any) -> _Read:
        start = time.perf_counter()
        try:
            parts = self._parts(request)
        except Exception:
            if get_worker_info() is not None:
                traceback.print_exc()  # torch reports only that a worker failed
            raise
        return _Read(parts, time.perf_counter() - start)

    def _parts(self, request: Any) -> tuple[Tensor, ...]:
        raise NotImplementedError


class _TrainingReader(_Reader):
    """Read a rank's share of a batch: the raw inputs, then the targets."""

    def __init__(self, objective: Objective, samples: Samples, role: ReadingRole) -> None:
        self._objective, self._samples = objective, samples
        self._inputs, self._targets = role.inputs, role.targets

    def _parts(self, request: _Share) -> tuple[Tensor, ...]:
        """Return the parts of each epoch's samples, concatenated along the batch."""
        indices, epochs, seed = request
        if epochs[0] == epochs[-1]:  # epochs of a batch never decrease
            return self._read_epoch(indices, seed, int(epochs[0]))
        each = dict.fromkeys(epochs.tolist())  # np.unique imports numpy.ma
        read = [self._read_epoch(indices[epochs == epoch], seed, epoch) for epoch in each]
        return tuple(map(torch.cat, zip(*read, strict=True)))

    def _read_epoch(self, indices: NDArray[Any], seed: int, epoch: int) -> tuple[Tensor, ...]:
        which = self._samples, indices, seed, epoch
        parts = self._objective.read(*which) if self._inputs else ()
        return (*parts, self._objective.targets(*which)) if self._targets else parts


class _EvaluationReader(_Reader):
    """Read the inputs of a slice of the evaluation samples; labels are in memory."""

    def __init__(self, objective: Objective, stored: Any, role: ReadingRole) -> None:
        self._objective, self._stored, self._inputs = objective, stored, role.inputs

    def _parts(self, request: slice) -> tuple[Tensor, ...]:
        return (self._objective.evaluation(self._stored[request]),) if self._inputs else ()


class _Requests:
    """Sampler of a DataLoader that outlives its iterations: iterates over the latest requests."""

    def __init__(self) -> None:
        self.latest: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.latest)


def _die_with(rank: int, _worker: int) -> None:
    """Let the kernel end this worker process with the process of its ``rank`` (Linux, prctl(2)).

    torch's workers compare their parent with their first parent, so a worker that starts after its
    rank has ended would never end.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != rank:
        os._exit(1)


class _Workers:
    """Worker processes that answer requests in order."""

    def __init__(self, reader: _Reader, count: int, device: torch.device) -> None:
        self.count, self._requests = count, _Requests()
        self._iterator: Any = None
        self._loader = DataLoader(
            reader,
            sampler=self._requests,
            batch_size=None,  # each request is a whole batch
            num_workers=count,
            persistent_workers=True,
            pin_memory=device.type != "cpu",
            generator=torch.Generator(),  # leaves the default generator alone
            worker_init_fn=partial(_die_with, os.getpid()),
        )

    def read(self, requests: Iterable[Any]) -> Iterator[_Read]:
        """Yield the answer to each of ``requests``; earlier unanswered requests are dropped."""
        self._requests.latest = requests
        self._iterator = iter(self._loader)  # the same iterator and processes each time
        yield from self._iterator

    def close(self) -> None:
        """End the processes, and wait until they are gone."""
        if self._iterator is not None:
            # Deleting the iterator does the same, but an exception's traceback may refer to it.
            self._iterator._shutdown_workers()  # noqa: SLF001 - torch offers no public method


class _Stream:
    """The input of this rank from one split, by worker processes, itself, or its tp group.

    On accelerators, copies from pinned memory on a separate stream overlap the passes of earlier
    batches.
    """

    def __init__(self, device: torch.device, role: ReadingRole, *, ahead: bool) -> None:
        self._device, self._role = device, role
        self._copying = None if device.type == "cpu" else torch.Stream(device)
        # Data in memory is read by every rank of a tp group.
        shares = ahead and role.needs_any and role.group is not None
        self._shared = TensorParallelInput(role.group) if shares and role.group else None
        self._receives = self._shared is not None and not self._shared.reads
        self._ahead = ahead and role.needs_any and not self._receives
        self._source: Any = None
        self._reader: _Reader | None = None
        self._workers: _Workers | None = None

    def read_from(self, source: Any, reader: Callable[[], _Reader]) -> None:
        """Set ``source`` and its ``reader``, unless ``source`` is set already."""
        if self._source is source:
            return
        self.close()
        self._source, self._reader = source, reader()
        if self._ahead:
            self._workers = _Workers(self._reader, self._role.workers, self._device)

    def parts(
        self,
        requests: Iterator[Any],
        size_of: Callable[[Any], int],
        timer: StepTimer | None = None,
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yield the parts [batch, ...] of each request, on the device.

        ``size_of`` returns the number of samples of a request. ``timer`` receives the seconds of
        reading, divided by the number of workers, and of the copies.
        """
        shared, workers = self._shared, self._workers
        if shared is not None and self._receives:
            for request in requests:
                yield shared.receive(size_of(request), self._device)
            return
        assert self._reader is not None, "read_from comes first"
        answers = workers.read(requests) if workers else map(self._reader.__getitem__, requests)
        for read in answers:
            if timer is not None:
                timer.count("read", read.seconds / (workers.count if workers else 1))
            parts = self._copy(read.parts, timer)
            if shared is not None:
                shared.send(parts)
            yield parts

    def _copy(self, parts: Iterable[Tensor], timer: StepTimer | None) -> tuple[Tensor, ...]:
        """Return ``parts`` [batch, ...] on the device."""
        timed = contextlib.nullcontext() if timer is None else timer.part("prepare")
        if self._copying is None:
            with timed:
                return tuple(part.to(self._device) for part in parts)
        with self._copying, timed:
            copied = tuple(part.pin_memory().to(self._device, non_blocking=True) for part in parts)
        passes = torch.accelerator.current_stream(self._device)
        passes.wait_stream(self._copying)
        for part in copied:
            part.record_stream(passes)  # no copy reuses the memory before the passes have read it
        return copied

    def close(self) -> None:
        """End the worker processes."""
        if self._workers is not None:
            self._workers.close()
        self._source = self._reader = self._workers = None


_MOST_WORKERS = 16


@dataclass(frozen=True, slots=True)
class ReadingRole:
    """The parts of its replica's samples that a rank needs, and its means to read them."""

    inputs: bool = True  #: whether the rank holds the first stage
    targets: bool = True  #: whether the rank holds the last stage
    group: dist.ProcessGroup | None = (
        None  #: tp group, whose ranks need the same samples; None without tp
    )
    readers: int = 1  #: number of ranks on this machine that read inputs and share its cores

    @property
    def needs_any(self) -> bool:
        """Return whether the rank needs inputs or targets."""
        return self.inputs or self.targets

    @property
    def workers(self) -> int:
        """Return the number of worker processes of this rank."""
        if not self.inputs:
            return 1  # targets need no decoding
        return min(_MOST_WORKERS, max(1, len(os.sched_getaffinity(0)) // self.readers))

    def in_evaluation(self) -> ReadingRole:
        """Return the role in evaluation, whose labels are in memory."""
        return replace(self, targets=False)


def reading_role(plan: ParallelPlan, mesh: Mesh) -> ReadingRole:
    """Return this rank's role: the first stage needs inputs, the last stage targets."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    first = own_rank() - int(os.environ.get("LOCAL_RANK", "0"))
    places = (coordinates(plan, rank) for rank in range(first, first + local))
    readers = sum(0 in plan.stages_of(at["pp"]) and at["tp"] == 0 for at in places)
    stages = plan.stages_of(mesh.pp_rank)
    return ReadingRole(
        inputs=0 in stages,
        targets=plan.pipeline_stages - 1 in stages,
        group=mesh.group("tp"),
        readers=max(1, readers),
    )


class TensorParallelInput:
    """Broadcast of samples from the first rank of a tp group.

    All samples of a stream must have parts of the same shapes and dtypes: shapes are sent with the
    first batch only, since receiving them on an accelerator would synchronize with it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.reads = dist.get_rank(group) == 0
        self._kinds: list[Any] | None = None  # per part: shape without the batch, dtype

    def send(self, parts: tuple[torch.Tensor, ...]) -> None:
        """Send ``parts`` [batch, ...], which are on the device of the group.

        Raises:
            RuntimeError: if shapes or dtypes differ from the first batch.
        """
        kinds = [(part.shape[1:], part.dtype) for part in parts]
        if self._kinds is None:
            self._agree(kinds)
        elif kinds != self._kinds:
            expected = f"samples of the shapes and dtypes {self._kinds}, as in the first batch"
            raise RuntimeError(f"with tp: expected {expected}, the objective read {kinds}")
        for part in parts:
            self._broadcast(part.contiguous())

    def receive(self, size: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Return the parts [batch, ...] of a batch of ``size`` samples from the first rank."""
        kinds = self._agree(None) if self._kinds is None else self._kinds
        parts = tuple(
            torch.empty(size, *shape, dtype=dtype, device=device) for shape, dtype in kinds
        )
        for part in parts:
            self._broadcast(part)
        return parts

    def _agree(self, kinds: list[Any] | None) -> list[Any]:
        """Send or receive shapes and dtypes."""
        held = [kinds]
        dist.broadcast_object_list(held, group=self._group, group_src=0)
        assert held[0] is not None, "the first rank sends them"
        self._kinds = held[0]
        return self._kinds

    def _broadcast(self, part: torch.Tensor) -> None:
        """Broadcast the bytes of ``part``: gloo does not support every dtype."""
        dist.broadcast(part.flatten().view(torch.uint8), group=self._group, group_src=0)
