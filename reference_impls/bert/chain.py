"""BERT for pre-training as a chain (Devlin et al. 2019), as transformers defines it.

A sample is one tensor of integers ``[tokens, 3]``: identity, place and sentence of each token. The
tokens to predict stand first (after the class token, where there are sentences), so that every
unit maps one tensor to one, and the head computes nothing that is not asked for. Attention does
not see the order of tokens, only their places. There is no padding: sequences are filled.

The decoder's weights are its own, not the embeddings': tied weights would have to lie on the
first and on the last stage of a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from reference_impls.bert.characters import MaskedCharacters
from reference_impls.bert.pairs import SegmentPairs
from reference_impls.engine.chain import Chain, Unit
from reference_impls.transformer.layer import SPLIT, EncoderLayer
from suite.tasks.schema import build

if TYPE_CHECKING:
    from suite.tasks.task import Task

__all__ = ["Embeddings", "Head", "Shape", "bert_chain"]


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of a BERT, as the task's ``[model]`` table gives them."""

    vocabulary: int
    tokens: int  #: of a sequence
    masked: int  #: of these, to be predicted: so many in every sequence
    hidden: int
    layers: int
    heads: int
    inner: int  #: width inside the feed-forward networks
    dropout: float
    sentences: bool  #: also learn whether one sentence follows the other
    norm_first: bool  #: normalise what enters a layer's parts, not what leaves them
    initial_std: float  #: of linears
    embedding_std: float


class Embeddings(nn.Module):
    """The sum of what a token is, where it stands and in which sentence."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Embedding(shape.tokens, shape.hidden)
        self.sentences = nn.Embedding(2, shape.hidden)
        self.norm = nn.Identity() if shape.norm_first else _norm(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[batch, tokens, hidden]`` for ``[batch, tokens, 3]`` of integers."""
        words, places, sentences = inputs.unbind(dim=2)
        summed = self.words(words) + self.sentences(sentences) + self.places(places)
        outputs: Tensor = self.dropout(self.norm(summed))
        return outputs


class Head(nn.Module):
    """Predict the masked tokens and, from the class token, whether the sentences belong."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self._masked, self._sentences = shape.masked, shape.sentences
        self.first_norm = _norm(shape) if shape.norm_first else nn.Identity()
        self.transform = nn.Linear(shape.hidden, shape.hidden)
        self.norm = _norm(shape)
        self.decoder = nn.Linear(shape.hidden, shape.vocabulary)
        if shape.sentences:
            self.pooler = nn.Linear(shape.hidden, shape.hidden)
            self.relation = nn.Linear(shape.hidden, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits ``[batch, masked, vocabulary]``.

        With sentences one more row comes first, whose first two numbers are their relation's.
        """
        first = int(self._sentences)
        hidden = self.first_norm(inputs[:, : first + self._masked])
        transformed = self.norm(functional.gelu(self.transform(hidden[:, first:])))
        words: Tensor = self.decoder(transformed)
        if not self._sentences:
            return words
        relation = self.relation(torch.tanh(self.pooler(hidden[:, 0])))
        row = functional.pad(relation, (0, words.shape[2] - 2)).unsqueeze(1)
        return torch.cat([row, words], dim=1)


def bert_chain(task: Task) -> Chain:
    """Return the task's BERT: embeddings, encoder layers and a head."""
    shape = build(Shape, task.model, path=task.name, at="model")
    units = [Unit("embeddings", Embeddings(shape))]
    for index in range(shape.layers):
        layer = EncoderLayer(
            shape.hidden,
            shape.heads,
            shape.inner,
            norm_first=shape.norm_first,
            epsilon=_EPSILON,
            dropout=shape.dropout,
        )
        units.append(Unit(f"layers.{index}", layer, SPLIT))
    units.append(Unit("head", Head(shape)))
    for unit in units:
        unit.module.apply(partial(_initialise, shape=shape))
    return Chain(
        units=tuple(units),
        objective=(
            SegmentPairs() if shape.sentences else MaskedCharacters(shape.tokens, shape.masked)
        ),
        example=partial(_example, shape=shape),
    )


_EPSILON = 1e-12


def _norm(shape: Shape) -> nn.LayerNorm:
    return nn.LayerNorm(shape.hidden, _EPSILON)


def _initialise(module: nn.Module, *, shape: Shape) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=shape.initial_std)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=shape.embedding_std)


def _example(batch: int, *, shape: Shape) -> tuple[Tensor, Tensor]:
    places = torch.arange(shape.tokens).expand(batch, -1)
    words = torch.randint(shape.vocabulary, places.shape)
    inputs = torch.stack([words, places, torch.zeros_like(words)], dim=2)
    return inputs, torch.zeros(batch, int(shape.sentences) + shape.masked, dtype=torch.int64)
