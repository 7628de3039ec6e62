"""A link between two pipeline stages: messages in one direction, in the order of micro-batches."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from hybridperf_reference.engine.link_codecs import LinkCodec, LinkKey

__all__ = ["Link"]


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
