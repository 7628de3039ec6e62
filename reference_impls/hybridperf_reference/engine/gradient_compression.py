"""Averages of gradients over replicas: in full, in bf16, or as products of two factors (PowerSGD).

Communication has two halves, so that it can run beside other work: `GradientAverage.start` begins
it and `GradientAverage.finish` completes it. All replicas call both in the same order.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import torch
import torch.distributed as dist
from numpy import uint64
from numpy.random import SeedSequence
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = [
    "GRADIENT_AVERAGES",
    "RANK",
    "FlatAverage",
    "GradientAverage",
    "Pending",
    "PowerSgd",
    "low_rank_elements",
]

RANK: Final = 4  #: of PowerSGD's approximations


@dataclass(slots=True)
class Pending:
    """The gradients of one step on their way through an all-reduce."""

    buffer: Tensor  #: [element]
    work: dist.Work | None  #: None if there is nothing to send
    slot: int = 0  #: which of PowerSGD's memories
    memory: _Memory | None = None  #: what an earlier step left there for this one
    corrected: list[Tensor] = field(default_factory=list)  #: gradients plus residues, by `_Stack`


class GradientAverage(Protocol):
    """A way to average the gradients of some parameters over the replicas.

    Averages have the parameters' shapes and types, and are bitwise identical on all replicas,
    provided that their processors are alike.
    """

    sent_bytes: int  #: handed to all-reduces so far
    uncompressed_bytes: int  #: of the gradients so far

    def start(self, gradients: Sequence[Tensor]) -> Pending:
        """Begin to average ``gradients`` [...], one for each parameter; they are not changed."""

    def finish(self, pending: Pending) -> list[Tensor]:
        """Wait, and return the average of each gradient [...]."""

    def discard(self, pending: Pending) -> None:
        """Undo what `finish` kept for a later step, because the weights skip this one."""

    def state(self) -> dict[str, Tensor]:
        """Return what this replica keeps for later steps; no step may be pending."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""


class FlatAverage:
    """Average gradients in one all-reduce, which adds in ``sent_as``, or else in their own type."""

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
        """Do nothing: no step depends on an earlier one."""

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
    """What one step leaves for a later one; lists have a tensor for each `_Stack`."""

    residues: list[Tensor]  #: [matrix, row, column], what this replica has not sent yet
    factors: list[Tensor]  #: [matrix, column, rank], the same on all replicas


class PowerSgd:
    """Average matrices as products of factors of rank 4 (Vogels et al. 2019, algorithms 1 and 2).

    A gradient of more than two dimensions is a matrix [first dimension, others]. With the residue E
    of this replica and the factor Q of an earlier step: M = gradient + E; P = the mean of M Q over
    the replicas, its columns made orthonormal; Q = the mean of M' P; the average is P Q'. What this
    replica has not sent, M - P (M' P)', is its next residue. So nothing is lost: averages and the
    mean residue add up to the mean of all gradients. Gradients that factors would not make smaller,
    such as those of biases, are sent in full beside P. All steps must have one loss scale, as their
    gradients are added up: those of fp16 are unscaled before `start`.

    Under ``staleness`` d, step t may start before the steps t-d to t-1 are finished. It takes the
    residues and factors that step t-1-d left, whatever has been finished since: d+1 memories are
    used in turns, each residue is taken exactly once, and no result depends on when `finish` is
    called.

    Where a gradient is not finite on any replica, the averages of that step are not all finite, and
    residues and factors stay as they were. So they do after `discard`, for a step that is skipped
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
        """Start the all-reduce of P, and of the ``gradients`` [...] that are sent in full."""
        slot = self._step % len(self._memories)
        memory, self._memories[slot] = self._memories[slot], None
        assert memory is not None, "the step before whose residue this one takes is not finished"
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
        """Wait, all-reduce Q, keep what is left for a later step, and return the averages [...]."""
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
        factors = [  # a column of zeros would stay one
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
        """Undo what `finish` kept, before the step that would take it starts."""
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
        """Restore what `state` returned, under this or another staleness.

        Under another one, the next step takes the sum of the residues, so that none is lost, and
        all memories start from the newest factors.
        """
        self._step = int(state["step"])
        slots = sorted({int(key.split(".")[1]) for key in state if "." in key})
        saved = [
            _Memory(*(self._stacked(state, f"{kind}.{slot}") for kind in ("residue", "factor")))
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

    def _stacked(self, state: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
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
}  #: by the value of the plan's field ``gradients``: of parameters, group, seed and staleness


def _stacks(parameters: Sequence[Tensor]) -> list[_Stack]:
    """Return the parameters whose factors have fewer elements than they have, by shape and type."""
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
    """Return the elements of the factors of a gradient, or of itself if it has no more."""
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
    """Start to add ``buffer`` [element] up over ``group``, in place."""
    return dist.all_reduce(buffer, group=group, async_op=True) if buffer.numel() else None
