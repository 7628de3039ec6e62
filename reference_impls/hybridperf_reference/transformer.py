"""A Transformer encoder layer (Vaswani et al. 2017), with post-norm or pre-norm.

Samples of unequal lengths are padded with rows of zeros, which every unit keeps: hidden states
then state which tokens are padding. Layers compute on the other tokens only, packed into one row.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hybridperf_reference.engine.chain import Split

__all__ = ["SPLIT", "Attention", "EncoderLayer", "FeedForward", "dense_attention"]

SPLIT: Final[Mapping[str, Split]] = {
    "attention.query": "column",
    "attention.key": "column",
    "attention.value": "column",
    "attention.out": "row",
    "mlp.inner": "column",
    "mlp.outer": "row",
}  #: linear layers of an `EncoderLayer` that tensor parallelism splits


def dense_attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
    """Return softmax(Q K^T / sqrt(features)) V for Q, K and V [batch, head, token, feature].

    ``dropout_p`` is the probability that an element of the softmax is dropped.
    """
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p)


class Attention(nn.Module):
    """Multi-head self-attention, within each sample.

    ``attend`` is the function that mixes tokens: `dense_attention`, or under ``cp`` a ring.

    Query, key and value are separate linear layers: a split backward pass accumulates wrong
    gradients for a single layer whose output is chunked in three (pytorch#170277).
    """

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)
        self.attend: Callable[..., Tensor] = dense_attention
        self._head_size, self._dropout = hidden // heads, dropout

    def forward(self, inputs: Tensor, *, lengths: list[int] | None = None) -> Tensor:
        """Map [batch, token, hidden] to [batch, token, hidden].

        ``lengths`` are those of the samples packed in [1, token, hidden]. Under tensor parallelism
        each rank computes its own heads.
        """
        query, key, value = (
            linear(inputs).unflatten(-1, (-1, self._head_size)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        dropout = self._dropout if self.training else 0.0
        attend = partial(self.attend, dropout_p=dropout)
        if lengths is None:
            attended = attend(query, key, value)
        else:
            samples = zip(*(each.split(lengths, 2) for each in (query, key, value)), strict=True)
            attended = torch.cat([attend(*sample) for sample in samples], dim=2)
        outputs: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return outputs


class FeedForward(nn.Module):
    """Feed-forward network: two linear layers with a GELU between them."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, inner)
        self.gelu = nn.GELU()
        self.outer = nn.Linear(inner, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [batch, token, hidden] to [batch, token, hidden]."""
        outputs: Tensor = self.outer(self.gelu(self.inner(inputs)))
        return outputs


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual connection and LayerNorm.

    ``norm_first`` selects pre-norm (as in ViT) instead of post-norm (as in BERT). With ``padded``
    samples the layer leaves padding out, rows of zeros.
    """

    def __init__(
        self,
        hidden: int,
        heads: int,
        inner: int,
        *,
        norm_first: bool,
        epsilon: float,
        dropout: float = 0.0,
        padded: bool = False,
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden, epsilon)
        self.attention = Attention(hidden, heads, dropout)
        self.mlp_norm = nn.LayerNorm(hidden, epsilon)
        self.mlp = FeedForward(hidden, inner)
        self.dropout = nn.Dropout(dropout)
        self._norm_first, self._padded = norm_first, padded

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [batch, token, hidden] to [batch, token, hidden]."""
        if not self._padded or inputs.is_meta:  # meta tensors have no lengths
            return self._transformed(inputs, None)
        real = (inputs != 0).any(dim=2)
        tokens = real.flatten().nonzero().squeeze(1)
        packed = inputs.flatten(0, 1).index_select(0, tokens)
        outputs = self._transformed(packed.unsqueeze(0), real.sum(dim=1).tolist()).squeeze(0)
        padded = outputs.new_zeros(real.numel(), outputs.shape[1])
        padded = padded.index_copy(0, tokens, outputs)
        return padded.view(*real.shape, -1)

    def _transformed(self, inputs: Tensor, lengths: list[int] | None) -> Tensor:
        outputs: Tensor
        attention = partial(self.attention, lengths=lengths)
        if self._norm_first:
            hidden = inputs + self.dropout(attention(self.attention_norm(inputs)))
            outputs = hidden + self.dropout(self.mlp(self.mlp_norm(hidden)))
        else:
            hidden = self.attention_norm(inputs + self.dropout(attention(inputs)))
            outputs = self.mlp_norm(hidden + self.dropout(self.mlp(hidden)))
        return outputs
