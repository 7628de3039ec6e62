"""A link between two stages, and the codecs of what they send each other."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import torch
import torch.distributed as dist
from numpy import uint64
from numpy.random import SeedSequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

__all__ = ["LINK_CODECS", "Link", "LinkCodec", "LinkKey"]


class Link:
    """Send tensors of one shape to the other rank of ``group``, or receive them from it.

    They cross in the form of ``codec``. One receive is posted ahead, so that a message can arrive
    while this rank computes. At most ``most_sends`` messages are under way. The ``group`` of two
    must serve nothing else, since whatever came after the receive would wait for it on NCCL.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        *,
        codec: LinkCodec,
        most_sends: int,
    ) -> None:
        self._group, self._peer = group, 1 - dist.get_rank(group)
        self._most_sends = most_sends
        self._shape, self._dtype, self._device = tuple(shape), dtype, device
        self._codec = codec
        self._posted: tuple[Tensor, dist.Work | None] | None = None
        self._sent: deque[tuple[dist.Work | None, Tensor]] = deque()
        self.sent_bytes = self.uncompressed_bytes = 0  # so far

    def send(self, values: Tensor, key: LinkKey) -> None:
        """Send ``values`` [...] of the link's shape; they must not change until received."""
        while len(self._sent) >= self._most_sends:
            self._wait_for_oldest()
        message = self._codec.encode(values, key)
        work = dist.isend(message, group=self._group, group_dst=self._peer)
        self._sent.append((work, message))
        self.sent_bytes += message.nbytes
        self.uncompressed_bytes += values.nbytes

    def receive(self, *, another: bool) -> Tensor:
        """Return the next values [...]; ``another`` says whether one more message follows."""
        message, work = self._posted or self._post()
        self._posted = self._post() if another else None
        if work is not None:
            work.wait()
        return self._codec.decode(message, self._shape, self._dtype)

    def drain(self) -> None:
        """Wait until all messages sent are received."""
        while self._sent:
            self._wait_for_oldest()

    def _post(self) -> tuple[Tensor, dist.Work | None]:
        message = self._codec.wire(self._shape, self._dtype, self._device)
        return message, dist.irecv(message, group=self._group, group_src=self._peer)

    def _wait_for_oldest(self) -> None:
        work, _ = self._sent.popleft()
        if work is not None:
            work.wait()


_LARGEST_CODE: Final = 127  # the codes of int8 are symmetric about 0
_KEPT_SHARE: Final = 10  # topk sends one value in so many


class LinkKey(NamedTuple):
    """What identifies a tensor on a link, and so the random numbers of its rounding."""

    seed: int  #: of the run
    step: int
    microbatch: int  #: in the global batch
    boundary: int  #: index of the later of the two stages
    gradient: bool  #: whether it travels backwards


class LinkCodec(Protocol):
    """A form in which a tensor is sent; the bytes on the link are those of the encoded tensor.

    No codec keeps state between calls: an error that is carried over to the next micro-batch would
    be added to other samples (Rudakov et al. 2024 find that it hurts, too).
    """

    def wire(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized tensor to receive into, for values of this shape and type."""

    def encode(self, values: Tensor, key: LinkKey) -> Tensor:
        """Return ``values`` [...] as one contiguous tensor, in the form that `wire` has."""

    def decode(self, wire: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return what ``wire`` stands for, in this shape and type; it may share its memory."""


class Cast:
    """Send values in ``sent_as``, or, where that is None, as they are."""

    def __init__(self, sent_as: torch.dtype | None = None) -> None:
        self._sent_as = sent_as

    def wire(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized tensor [element] to receive into."""
        return torch.empty(math.prod(shape), dtype=self._sent_as or dtype, device=device)

    def encode(self, values: Tensor, key: LinkKey) -> Tensor:  # noqa: ARG002 - nothing is drawn
        """Return ``values`` [...] as a tensor [element]."""
        return values.detach().to(self._sent_as or values.dtype).flatten()

    def decode(self, wire: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return ``wire`` [element] in this shape and type."""
        return wire.view(tuple(shape)).to(dtype)


class Int8:
    """Send a code of 8 bits for each value, and a scale in fp32 for each channel.

    A channel is an index of dimension 1 for images [sample, channel, height, width], and of the
    last one for [sample, token, feature] and [sample, feature]. Its scale is its largest magnitude
    divided by 127. Rounding is stochastic, so that the mean error is zero; the error of a value is
    less than the scale. The numbers drawn depend on the key alone, so that any process on a device
    of the same kind can repeat them.

    A channel with a value that is not finite arrives as NaN throughout, so that fp16's loss scaling
    sees the overflow. One whose largest magnitude is below 127 times the smallest normal number of
    fp32 has that as its scale.
    """

    def wire(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized tensor [byte] to receive into."""
        del dtype  # codes and scales have the same size for all
        size = math.prod(shape)
        return torch.empty(size + _scale_bytes(shape, size), dtype=torch.int8, device=device)

    def encode(self, values: Tensor, key: LinkKey) -> Tensor:
        """Return scales and codes of ``values`` [...] as a tensor [byte]."""
        values = values.detach().contiguous()
        values = values.to(torch.promote_types(values.dtype, torch.float32))
        shape, size = values.shape, values.numel()
        wire = self.wire(shape, values.dtype, values.device)
        if not size:
            return wire
        channel = _channel_dim(shape)
        others = [dim for dim in range(len(shape)) if dim != channel]
        largest = values.abs().amax(others, keepdim=True)  # vector_norm takes 18 times as long
        scale = (largest / _LARGEST_CODE).float().clamp_(min=torch.finfo(torch.float32).tiny)
        generator = torch.Generator(values.device)
        generator.manual_seed(int(SeedSequence([*map(int, key)]).generate_state(1, uint64)[0]))
        drawn = torch.rand(shape, generator=generator, device=values.device)
        # floor(value + drawn) would round a whole number up where the sum is not exact.
        exact = values / scale
        codes = exact.floor()
        codes += drawn < exact.sub_(codes)
        # Where the scale is not finite all codes are 0, and 0 times infinity or NaN is NaN.
        codes.clamp_(-_LARGEST_CODE, _LARGEST_CODE).nan_to_num_(0.0)
        bounds = _scale_bytes(shape, size)
        wire[:bounds].view(torch.float32).copy_(scale.flatten())
        wire[bounds:].view(shape).copy_(codes)
        return wire

    def decode(self, wire: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return code times scale of ``wire`` [byte] in this shape and type."""
        size = math.prod(shape)
        if not size:
            return torch.empty(tuple(shape), dtype=dtype, device=wire.device)
        channel, bounds = _channel_dim(shape), _scale_bytes(shape, size)
        # Cloned, as a view on a larger buffer need not begin at a multiple of four bytes.
        scale = wire[:bounds].clone().view(torch.float32)
        along = [-1 if dim == channel else 1 for dim in range(len(shape))]
        wide = torch.promote_types(dtype, torch.float32)
        codes = wire[bounds:].view(tuple(shape)).to(wide)
        return codes.mul_(scale.view(along)).to(dtype)


class TopK:
    """Send the tenth of the values that is largest in magnitude, each with its index.

    At least one value is sent, each in fp32 with an index of 32 bits; the others arrive as zeros.
    Of values with equal magnitudes in fp32 those with the lowest indices are sent, on any device.
    Values that are not finite count as the largest, so that fp16's loss scaling sees an overflow.
    """

    def wire(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized tensor [2 x kept] to receive into."""
        del dtype  # fp32 for all
        size = math.prod(shape)
        kept = max(1, size // _KEPT_SHARE) if size else 0
        return torch.empty(2 * kept, dtype=torch.int32, device=device)

    def encode(self, values: Tensor, key: LinkKey) -> Tensor:
        """Return indices and values as a tensor [2 x kept], for ``values`` [...]."""
        del key  # nothing is drawn
        flat = values.detach().flatten()
        assert flat.numel() <= torch.iinfo(torch.int32).max, "an index has 32 bits"
        wire = self.wire(values.shape, values.dtype, values.device)
        narrow = flat.float()
        # As an integer, the bits of a magnitude are in its order; torch's topk leaves it open which
        # of equal elements it returns, so that no two are equal here.
        magnitudes = narrow.view(torch.int32).long().bitwise_and_(0x7FFFFFFF)
        ranks = magnitudes.mul_(2**31).sub_(torch.arange(flat.numel(), device=flat.device))
        indices = ranks.topk(kept := wire.numel() // 2, sorted=False).indices
        wire[:kept].copy_(indices)
        wire[kept:].view(torch.float32).copy_(narrow[indices])
        return wire

    def decode(self, wire: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return zeros of this shape and type with the values of ``wire`` [2 x kept] inserted."""
        values = torch.zeros(math.prod(shape), dtype=dtype, device=wire.device)
        kept = wire.numel() // 2
        values[wire[:kept].long()] = wire[kept:].view(torch.float32).to(dtype)
        return values.view(tuple(shape))


LINK_CODECS: Final[Mapping[str, LinkCodec]] = {
    "none": Cast(),
    "bf16": Cast(torch.bfloat16),
    "int8": Int8(),
    "topk": TopK(),
}  #: by the value of the plan's field ``links``


def _channel_dim(shape: Sequence[int]) -> int:
    return 1 if len(shape) > 3 else len(shape) - 1


def _scale_bytes(shape: Sequence[int], size: int) -> int:
    return 4 * shape[_channel_dim(shape)] if size else 0
