"""A link between two stages, and the codecs that compress its messages."""

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

    ``codec`` compresses them. One receive is posted ahead, so that a message can arrive while this
    rank computes. At most ``max_pending_sends`` messages are in flight. The ``group`` of two must
    serve nothing else: on NCCL, later operations would wait for the posted receive.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device,
        *,
        codec: LinkCodec,
        max_pending_sends: int,
    ) -> None:
        self._group, self._peer = group, 1 - dist.get_rank(group)
        self._most_sends = max_pending_sends
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
        """Return the next values [...]; ``another``: whether a message follows."""
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
_KEPT_SHARE: Final = 10  # topk sends one value in ten


class LinkKey(NamedTuple):
    """The identity of a tensor on a link, which seeds its stochastic rounding."""

    seed: int  #: seed of the run
    step: int
    microbatch: int  #: index in the global batch
    boundary: int  #: index of the later of the two stages
    gradient: bool  #: whether the tensor is a gradient


class LinkCodec(Protocol):
    """A compression of the tensors on a link; the encoded tensor is sent.

    No codec keeps state between calls: error feedback would add errors to other samples (Rudakov et
    al. 2024 find that it hurts, too).
    """

    def wire(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an uninitialized tensor to receive into, for values of this shape and type."""

    def encode(self, values: Tensor, key: LinkKey) -> Tensor:
        """Return ``values`` [...] encoded as one contiguous tensor, like `wire`."""

    def decode(self, wire: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the values of ``wire`` in this shape and type; they may share its memory."""


class Cast:
    """Send values in data type ``sent_as``, or in their own if None."""

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
    """Quantize values to 8 bits, with an fp32 scale for each channel.

    A channel is an index of dimension 1 for images [sample, channel, height, width], and of the
    last dimension for [sample, token, feature] and [sample, feature]. Its scale is its largest
    magnitude over 127, and not below the smallest normal number of fp32. Rounding is stochastic,
    with a mean error of zero; the error of a value is less than the scale. Random numbers depend on
    the key alone, so that any process on a device of the same kind can repeat them.

    A channel with a non-finite value arrives as NaN throughout, so that fp16's loss scaling sees
    the overflow.
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
    """Top-k sparsification: send the 10 % largest magnitudes, with their indices.

    One value or more is sent, in fp32 with an index of 32 bits; dropped values arrive as zeros. Of
    equal magnitudes in fp32 the lowest indices are sent, on any device. Non-finite values count as
    the largest, so that fp16's loss scaling sees an overflow.
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
}  #: codecs by the plan's field ``links``


def _channel_dim(shape: Sequence[int]) -> int:
    return 1 if len(shape) > 3 else len(shape) - 1


def _scale_bytes(shape: Sequence[int], size: int) -> int:
    return 4 * shape[_channel_dim(shape)] if size else 0
