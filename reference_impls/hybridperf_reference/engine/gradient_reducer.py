"""All-reduce of gradients overlapped with later passes: in full, in bf16, by PowerSGD."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import torch
import torch.distributed as dist
from numpy import uint64
from numpy.random import SeedSequence
from torch import Tensor

from hybridperf_reference.engine.gradients import add_zero_gradients, unused_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hybridperf.plan import ParallelPlan
    from hybridperf_reference.engine.mesh import Mesh

__all__ = [
    "GRADIENT_AVERAGES",
    "RANK",
    "FlatAverage",
    "GradientAverage",
    "GradientReducer",
    "Pending",
    "PowerSgd",
    "low_rank_elements",
]

RANK: Final = 4  #: rank of PowerSGD's approximations


@dataclass(slots=True)
class Pending:
    """The gradients of one step in an all-reduce."""

    buffer: Tensor  #: tensor [element] of the all-reduce
    work: dist.Work | None  #: None if there is nothing to send
    slot: int = 0  #: index of PowerSGD's memory
    memory: _Memory | None = None  #: contents of the memory before this step
    corrected: list[Tensor] = field(default_factory=list)  #: gradients plus residues, by `_Stack`


class GradientAverage(Protocol):
    """A method to average the gradients of some parameters over the replicas.

    `start` begins the communication and `finish` completes it, so that it overlaps computation. All
    replicas call both in the same order.

    Averages have the parameters' shapes and types, and are bitwise identical on replicas with equal
    processors.
    """

    sent_bytes: int  #: bytes of all all-reduces
    uncompressed_bytes: int  #: bytes of all gradients

    def start(self, gradients: Sequence[Tensor]) -> Pending:
        """Start the average of ``gradients`` [...] by parameter; they do not change."""

    def finish(self, pending: Pending) -> list[Tensor]:
        """Wait, and return the average of each gradient [...]."""

    def discard(self, pending: Pending) -> None:
        """Undo the changes of `finish` to later steps, because the weights skip this step."""

    def state(self) -> dict[str, Tensor]:
        """Return state for later steps; no step may be pending."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state`."""


class FlatAverage:
    """Average gradients in one all-reduce, in data type ``sent_as`` if given, else in their own."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        group: dist.ProcessGroup,
        sent_as: torch.dtype | None = None,
    ) -> None:
        self._parameters, self._group, self._sent_as = list(parameters), group, sent_as
        self.sent_bytes = self.uncompressed_bytes = 0

    def start(self, gradients: Sequence[Tensor]) -> Pending:
        """Start the all-reduce of ``gradients`` [...]."""
        buffer = _flat(gradients, self._sent_as)
        self.uncompressed_bytes += sum(gradient.nbytes for gradient in gradients)
        self.sent_bytes += buffer.nbytes
        return Pending(buffer, _start_sum(buffer, self._group))

    def finish(self, pending: Pending) -> list[Tensor]:
        """Wait for the all-reduce, and return the averages [...]."""
        if pending.work is not None:
            pending.work.wait()
        sizes = [parameter.numel() for parameter in self._parameters]
        dtypes = [parameter.dtype for parameter in self._parameters]
        wide = pending.buffer.to(functools.reduce(torch.promote_types, dtypes, torch.float32))
        means = wide.div_(self._group.size()).split(sizes)
        return [
            mean.view(parameter.shape).to(parameter.dtype)
            for mean, parameter in zip(means, self._parameters, strict=True)
        ]

    def discard(self, pending: Pending) -> None:
        """Do nothing: steps are independent."""

    def state(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Do nothing."""


class _Stack:
    """Parameters that are compressed as matrices [row, column] of one shape and type."""

    def __init__(self, indices: list[int], shape: tuple[int, int], like: Tensor) -> None:
        self.indices, self.shape = indices, shape
        self.device = like.device
        self.dtype = torch.promote_types(like.dtype, torch.float32)
        self.left = (len(indices), shape[0], RANK)  #: shape of the factors P
        self.right = (len(indices), shape[1], RANK)  #: shape of the factors Q


@dataclass(frozen=True, slots=True)
class _Memory:
    """Error feedback from one step to a later step; lists are by `_Stack`."""

    residues: list[Tensor]  #: [matrix, row, column]: unsent part of this replica's gradients
    factors: list[Tensor]  #: [matrix, column, rank]: factors Q, the same on all replicas


class PowerSgd:
    """Average matrices as products of factors of rank 4 (Vogels et al. 2019, algorithms 1 and 2).

    A gradient of more than two dimensions is a matrix [first dimension, remaining dimensions]. With
    the residue E of this replica and the factor Q of an earlier step: M = gradient + E; P = the
    mean of M Q over the replicas, with orthonormalized columns; Q = the mean of M' P; the average
    is P Q'. The next residue (error feedback) is M - P (M' P)', so averages and the mean residue
    add up to the mean of all gradients. Gradients with no smaller factors, such as gradients of
    biases, are sent in full with P. All steps must have one loss scale, as residues add gradients
    of several steps: fp16 gradients are unscaled before `start`.

    Under ``staleness`` d, step t may start before the steps t-d to t-1 are finished. It takes the
    residues and factors of step t-1-d: d+1 memories are used round-robin, each residue is used
    exactly once, and no result depends on the time of `finish`.

    Where a gradient is not finite on any replica, the averages of that step are not all finite, and
    residues and factors do not change. Nor do they after `discard`, for a step that is skipped
    because of another stage.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        group: dist.ProcessGroup,
        seed: int,
        staleness: int = 0,
    ) -> None:
        self._parameters, self._group, self._step = list(parameters), group, 0
        self._stacks = _stacks(self._parameters)
        compressed = {index for stack in self._stacks for index in stack.indices}
        self._plain = [i for i in range(len(self._parameters)) if i not in compressed]
        first = _Memory(
            [self._zeros(stack) for stack in self._stacks],
            [self._draw(stack, seed) for stack in self._stacks],
        )
        self._memories: list[_Memory | None] = [first] * (staleness + 1)  # never changed in place
        self.sent_bytes = self.uncompressed_bytes = 0

    def start(self, gradients: Sequence[Tensor]) -> Pending:
        """Start the all-reduce of P, and of ``gradients`` [...] without factors."""
        slot = self._step % len(self._memories)
        memory, self._memories[slot] = self._memories[slot], None
        assert memory is not None, "the step with the residue of this step is not finished"
        self._step += 1
        corrected = [
            torch.stack([gradients[i].detach().reshape(stack.shape) for i in stack.indices])
            .to(residue.dtype)
            .add_(residue)
            for stack, residue in zip(self._stacks, memory.residues, strict=True)
        ]
        products = map(torch.bmm, corrected, memory.factors)
        buffer = _flat([*(gradients[i] for i in self._plain), *products])
        self.uncompressed_bytes += sum(gradient.nbytes for gradient in gradients)
        self.sent_bytes += buffer.nbytes
        work = _start_sum(buffer, self._group)
        return Pending(buffer, work, slot, memory, corrected=corrected)

    def finish(self, pending: Pending) -> list[Tensor]:
        """Wait, all-reduce Q, store the residues, and return the averages [...]."""
        memory, matrices = pending.memory, pending.corrected
        assert memory is not None
        if pending.work is not None:
            pending.work.wait()
        plain = [self._parameters[i] for i in self._plain]
        sizes = [parameter.numel() for parameter in plain]
        mean = pending.buffer / self._group.size()
        *plain_means, products = mean.split([*sizes, mean.numel() - sum(sizes)])
        lefts = _unflat(products, [stack.left for stack in self._stacks], matrices)
        # QR returns orthonormal columns whatever the rank; Gram-Schmidt would divide by zero.
        bases = [torch.linalg.qr(left).Q for left in lefts]
        own = [torch.bmm(matrix.mT, basis) for matrix, basis in zip(matrices, bases, strict=True)]
        flat = _flat([*own, mean.new_empty(0)])
        if (work := _start_sum(flat, self._group)) is not None:
            work.wait()
        self.sent_bytes += flat.nbytes
        flat /= self._group.size()
        rights = _unflat(flat, [stack.right for stack in self._stacks], matrices)

        finite = mean.isfinite().all() & flat.isfinite().all()  # the same on all replicas
        residues = [
            torch.where(finite, matrix.sub_(basis @ part.mT), residue)
            for matrix, basis, part, residue in zip(
                matrices, bases, own, memory.residues, strict=True
            )
        ]
        factors = [  # a column of zeros would stay zero
            torch.where(finite & (right != 0).any(dim=1, keepdim=True), right, factor)
            for right, factor in zip(rights, memory.factors, strict=True)
        ]
        self._memories[pending.slot] = _Memory(residues, factors)
        pending.corrected = []

        means = list(self._parameters)
        for index, value in zip(self._plain, plain_means, strict=True):
            means[index] = value
        for stack, basis, right in zip(self._stacks, bases, rights, strict=True):
            for index, value in zip(stack.indices, basis @ right.mT, strict=True):
                means[index] = value
        return [
            value.reshape(parameter.shape).to(parameter.dtype)
            for value, parameter in zip(means, self._parameters, strict=True)
        ]

    def discard(self, pending: Pending) -> None:
        """Undo the residues and factors of `finish`, before the step that uses them starts."""
        self._memories[pending.slot] = pending.memory

    def state(self) -> dict[str, Tensor]:
        """Return residues, factors and the number of steps; no step may be pending.

        Keys are ``step``, and ``residue.<memory>.<parameter>`` [row, column] and
        ``factor.<memory>.<parameter>`` [column, rank] with the parameter's index.
        """
        found = {"step": torch.tensor(self._step)}
        for slot, memory in enumerate(self._memories):
            assert memory is not None, "finish all steps first"
            for stack, residue, factor in zip(
                self._stacks, memory.residues, memory.factors, strict=True
            ):
                for place, index in enumerate(stack.indices):
                    found[f"residue.{slot}.{index}"] = residue[place]
                    found[f"factor.{slot}.{index}"] = factor[place]
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state`, under the same or another staleness.

        Under another staleness, the next step takes the sum of the residues, so that none is lost,
        and all memories start from the newest factors.
        """
        self._step = int(state["step"])
        slots = sorted({int(key.split(".")[1]) for key in state if "." in key})
        saved = [
            _Memory(*(self._load_stack(state, f"{kind}.{slot}") for kind in ("residue", "factor")))
            for slot in slots
        ]
        count = len(self._memories)
        if len(saved) == count or not saved:
            self._memories[: len(saved)] = saved
            return
        newest = saved[(self._step - 1) % len(saved)].factors
        sums = [
            torch.stack(each).sum(dim=0) for each in zip(*(m.residues for m in saved), strict=True)
        ]
        zeros = [self._zeros(stack) for stack in self._stacks]
        self._memories = [
            _Memory(sums if slot == self._step % count else zeros, newest) for slot in range(count)
        ]

    def _zeros(self, stack: _Stack) -> Tensor:
        """Return residues [matrix, row, column] of zero."""
        shape = (len(stack.indices), *stack.shape)
        return torch.zeros(shape, dtype=stack.dtype, device=stack.device)

    def _draw(self, stack: _Stack, seed: int) -> Tensor:
        """Return the factors [matrix, column, rank] of the first step, the same on all replicas."""
        drawn = []
        for index in stack.indices:
            state = SeedSequence([seed, index]).generate_state(1, uint64)
            generator = torch.Generator().manual_seed(int(state[0]))
            drawn.append(torch.randn(stack.right[1:], generator=generator))
        return torch.stack(drawn).to(stack.device, stack.dtype)

    def _load_stack(self, state: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
        return [
            torch.stack([state[f"{prefix}.{index}"] for index in stack.indices]).to(stack.device)
            for stack in self._stacks
        ]


GRADIENT_AVERAGES: Final[
    Mapping[str, Callable[[Iterable[Tensor], dist.ProcessGroup, int, int], GradientAverage]]
] = {
    "fp32": lambda parameters, group, *_: FlatAverage(parameters, group),
    "bf16": lambda parameters, group, *_: FlatAverage(parameters, group, torch.bfloat16),
    "powersgd": PowerSgd,
}  #: (parameters, group, seed, staleness) -> average, by the plan's field ``gradients``


def _stacks(parameters: Sequence[Tensor]) -> list[_Stack]:
    """Return the parameters with fewer elements in their factors, by shape and data type."""
    alike: dict[tuple[int, int, torch.dtype], list[int]] = {}
    for index, parameter in enumerate(parameters):
        if parameter.numel() and low_rank_elements(parameter) < parameter.numel():
            rows = len(parameter)
            columns = parameter.numel() // rows
            alike.setdefault((rows, columns, parameter.dtype), []).append(index)
    return [
        _Stack(indices, (rows, columns), parameters[indices[0]])
        for (rows, columns, _), indices in alike.items()
    ]


def low_rank_elements(parameter: Tensor) -> int:
    """Return the number of elements of a gradient's factors, or of the gradient if smaller."""
    if parameter.dim() < 2:
        return parameter.numel()
    rows = len(parameter)
    return min(RANK * (rows + parameter.numel() // rows), parameter.numel())


def _flat(tensors: Sequence[Tensor], dtype: torch.dtype | None = None) -> Tensor:
    """Return all elements of ``tensors`` [...] as one copy [element]."""
    return torch.cat([tensor.flatten().to(dtype or tensor.dtype) for tensor in tensors])


def _unflat(
    flat: Tensor, shapes: Sequence[tuple[int, ...]], like: Sequence[Tensor]
) -> list[Tensor]:
    """Return the parts of ``flat`` [element] in these ``shapes``, with the types of ``like``."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = zip(flat.split(sizes), shapes, like, strict=True)
    return [part.view(shape).to(each.dtype) for part, shape, each in parts]


def _start_sum(buffer: Tensor, group: dist.ProcessGroup) -> dist.Work | None:
    """Start the all-reduce (sum) of ``buffer`` [element] over ``group``, in place."""
    return dist.all_reduce(buffer, group=group, async_op=True) if buffer.numel() else None


_BUCKET_BYTES: Final = 8 * 2**20  # gloo and NCCL reach their bandwidth with messages of this size


class GradientReducer:
    """Average gradients bucket by bucket, from the last backward pass of a step on.

    ``parameters`` are all trainable parameters of the stage; unused parameters have zero gradients.
    Buckets are in the order of the backward pass, as in DistributedDataParallel (Li et al. 2020),
    and every replica starts them in this order. Several steps may be in flight.
    """

    def __init__(
        self, parameters: Sequence[Tensor], plan: ParallelPlan, mesh: Mesh, seed: int
    ) -> None:
        self._parameters, group = parameters, mesh.group("replicate")
        # PowerSGD sends the factors of all matrices in one message.
        whole = plan.gradients == "powersgd"
        self._buckets = [[*range(len(parameters))]] if whole else _buckets(parameters)
        self._bucket_of = {n: index for index, bucket in enumerate(self._buckets) for n in bucket}
        build = GRADIENT_AVERAGES[plan.gradients]
        self._averages = [
            build([parameters[n] for n in bucket], group, seed, plan.staleness)
            for bucket in (self._buckets if group is not None else ())
            if group is not None
        ]
        self._own: dict[int, list[Tensor]] = {}  # gradients by step, for a single replica
        self._pending: dict[int, list[Pending]] = {}  # started buckets by step
        self._taken: list[Pending] = []
        self._step: int | None = None  # step whose last backward pass is running
        self._weights: Sequence[Tensor] = ()
        self._missing: list[int] = []

    @property
    def sent_bytes(self) -> int:
        """Return the bytes of all all-reduces."""
        return sum(average.sent_bytes for average in self._averages)

    @property
    def uncompressed_bytes(self) -> int:
        """Return the bytes of all gradients averaged."""
        return sum(average.uncompressed_bytes for average in self._averages)

    def begin(self, step: int, weights: Sequence[Tensor], outputs: Tensor) -> None:
        """Prepare for the last backward pass of ``step``, from ``outputs`` [...] to ``weights``."""
        self._step, self._weights = step, weights
        self._pending[step] = []
        self._missing = [len(bucket) for bucket in self._buckets]
        for number in unused_tensors(outputs, weights) if self._averages else ():
            self.ready(number)

    def ready(self, number: int) -> None:
        """Record the gradient of parameter ``number``, and start the complete buckets."""
        if self._step is None or not self._averages:
            return
        index = self._bucket_of[number]
        self._missing[index] -= 1
        if not self._missing[index]:
            self._start(only_complete=True)

    def end(self, step: int) -> None:
        """Start the remaining buckets of ``step`` after its last backward pass."""
        if self._averages:
            self._start(only_complete=False)
        else:
            self._own[step] = self._collect_gradients(range(len(self._parameters)))
        self._step = None

    def take(self, step: int) -> list[Tensor]:
        """Wait for the averages [...] of ``step`` and return them by parameter."""
        self._taken = self._pending.pop(step)
        if not self._averages:
            return self._own.pop(step)
        averages = [*self._parameters]
        for bucket, average, each in zip(self._buckets, self._averages, self._taken, strict=True):
            for number, gradient in zip(bucket, average.finish(each), strict=True):
                averages[number] = _in_layout(gradient, self._parameters[number])
        return averages

    def discard(self) -> None:
        """Undo the residues of the step last taken, because the weights skip it."""
        for average, pending in zip(self._averages, self._taken, strict=False):
            average.discard(pending)

    def state(self) -> dict[str, Tensor]:
        """Return residues and factors for later steps, by bucket; no step may be pending."""
        return {
            f"{number}.{name}": value
            for number, average in enumerate(self._averages)
            for name, value in average.state().items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state`."""
        for number, average in enumerate(self._averages):
            start = f"{number}."
            average.load_state(
                {n.removeprefix(start): v for n, v in state.items() if n.startswith(start)}
            )

    def _start(self, *, only_complete: bool) -> None:
        assert self._step is not None
        started = self._pending[self._step]
        while len(started) < len(self._buckets):
            index = len(started)
            if only_complete and self._missing[index]:
                return
            started.append(
                self._averages[index].start(self._collect_gradients(self._buckets[index]))
            )

    def _collect_gradients(self, numbers: Sequence[int]) -> list[Tensor]:
        """Return the accumulated gradients of some parameters, and clear them."""
        weights = [self._weights[number] for number in numbers]
        add_zero_gradients(weights)
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            weight.grad = None
        return gradients


def _in_layout(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return ``gradient`` in the memory layout of its parameter, which fused optimizers assume."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _buckets(parameters: Sequence[Tensor]) -> list[list[int]]:
    """Return indices of parameters by bucket, in reverse order of the forward pass."""
    buckets: list[list[int]] = []
    size_bytes = _BUCKET_BYTES
    for number, parameter in reversed([*enumerate(parameters)]):
        own_bytes = parameter.nbytes
        if size_bytes + own_bytes > _BUCKET_BYTES:
            buckets.append([])
            size_bytes = 0
        buckets[-1].append(number)
        size_bytes += own_bytes
    return buckets
