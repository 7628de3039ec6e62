"""Attention of tokens that ranks have parts of: keys and values go round a ring of the ranks.

Li et al. 2021 (sequence parallelism, as in Colossal-AI) and Liu et al. 2023, without a causal mask.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ring"]


class Ring:
    """Multi-head attention from this rank's tokens to the tokens of all ranks of ``group``.

    Ranks have the parts of ``tokens`` that `torch.Tensor.chunk` makes: the last may be smaller.
    Keys and values K, V take c - 1 rounds forward; backward c - 1 rounds again, and their gradients
    c. So the c ranks send (3c - 2)(K + V) elements together.
    """

    def __init__(self, group: dist.ProcessGroup, tokens: int) -> None:
        self._group = group
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._sizes = [len(part) for part in torch.empty(tokens, device="meta").chunk(self._ranks)]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
        """Return the attention outputs of ``query``; all are parts [batch, head, token, feature].

        Sums and exponentials are in fp32 or wider.
        """
        outputs: Tensor = _RingAttention.apply(query, key, value, self, dropout_p)
        return outputs

    def parts(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield each rank and its part of keys and values [2, batch, head, token, feature].

        ``own`` are this rank's, and come first. While a part is in use, the next one arrives.
        """
        part = own
        for number in range(self._ranks - 1):
            owner = (self._rank - number) % self._ranks
            arriving = self.start_round(part, owner)
            yield owner, part
            part = self.finish_round(arriving)
        yield (self._rank + 1) % self._ranks, part

    def start_round(self, part: Tensor, owner: int) -> _Round:
        """Start to send ``part`` [..., token, feature] of ``owner`` on, and to receive the next."""
        shape = [*part.shape[:-2], self._sizes[owner - 1], part.shape[-1]]
        received = part.new_empty(shape)
        ends = (
            (dist.isend, part, (self._rank + 1) % self._ranks),
            (dist.irecv, received, (self._rank - 1) % self._ranks),
        )
        operations = [
            dist.P2POp(operation, tensor, group=self._group, group_peer=peer)
            for operation, tensor, peer in ends
        ]
        return received, part, dist.batch_isend_irecv(operations)

    def finish_round(self, started: _Round) -> Tensor:
        """Return the part that has arrived."""
        received, _, works = started
        for work in works:
            work.wait()
        return received


_Round = tuple[Tensor, Tensor, "list[dist.Work]"]  #: received, sent (kept until then), operations


class _RingAttention(torch.autograd.Function):
    """Softmax over parts, accumulated by their log-sum-exp; probabilities are computed again."""

    @staticmethod
    def forward(
        context: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring, dropout_p: float
    ) -> Tensor:
        # Every rank drops by a sequence of its own for each part, which the backward pass repeats.
        seed = int(torch.randint(2**62, ())) if dropout_p else 0
        dropout = _Dropout(dropout_p, seed)
        with torch.autocast(query.device.type, enabled=False):
            scaled = _scaled(query)
            outputs = torch.zeros_like(scaled)
            sums = scaled.new_full((*scaled.shape[:-1], 1), -math.inf)  # logarithms
            for owner, part in ring.parts(torch.stack([key, value])):
                keys, values = part.to(scaled.dtype)
                scores = scaled @ keys.transpose(-2, -1)
                before, sums = sums, torch.logaddexp(sums, scores.logsumexp(-1, keepdim=True))
                probabilities = dropout(owner, (scores - sums).exp())
                outputs = outputs * (before - sums).exp() + probabilities @ values
        outputs = outputs.to(query.dtype)
        context.save_for_backward(query, key, value, outputs, sums)
        context.ring, context.dropout = ring, dropout
        return outputs

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, outputs, sums = context.saved_tensors
        ring, dropout, travelling = context.ring, context.dropout, None
        scaled = _scaled(query)
        gradient = gradients[0].to(scaled.dtype)
        rows = (gradient * outputs).sum(-1, keepdim=True)
        of_query = torch.zeros_like(scaled)
        for owner, part in ring.parts(torch.stack([key, value])):
            keys, values = part.to(scaled.dtype)
            probabilities = (scaled @ keys.transpose(-2, -1) - sums).exp()
            of_values = dropout(owner, probabilities).transpose(-2, -1) @ gradient
            of_probabilities = dropout(owner, gradient @ values.transpose(-2, -1))
            of_scores = probabilities * (of_probabilities - rows)
            of_query += of_scores @ keys
            of_part = torch.stack([of_scores.transpose(-2, -1) @ scaled, of_values])
            if travelling is not None:
                of_part += ring.finish_round(travelling)
            travelling = ring.start_round(of_part, owner)
        of_key, of_value = ring.finish_round(travelling).to(key.dtype)
        of_query = (of_query / math.sqrt(query.shape[-1])).to(query.dtype)
        return of_query, of_key, of_value, None, None


def _scaled(query: Tensor) -> Tensor:
    """Return ``query`` [..., feature] over the root of its features, in fp32 or wider."""
    width = torch.promote_types(query.dtype, torch.float32)
    return query.to(width) / math.sqrt(query.shape[-1])


class _Dropout:
    """Dropout with probability ``p`` that drops the same at every call for one rank's part."""

    def __init__(self, p: float, seed: int) -> None:
        self._p, self._seed = p, seed

    def __call__(self, owner: int, values: Tensor) -> Tensor:
        """Return ``values`` [...] for the part of ``owner``, with some set to zero."""
        if not self._p:
            return values
        generator = torch.Generator(values.device).manual_seed(self._seed + owner)
        # In one memory order, whatever that of the values is.
        kept = torch.empty_like(values, memory_format=torch.contiguous_format)
        return values * kept.bernoulli_(1 - self._p, generator=generator) / (1 - self._p)
