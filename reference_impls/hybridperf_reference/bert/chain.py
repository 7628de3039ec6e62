"""BERT for pre-training as a chain (Devlin et al. 2019), with the layers of transformers.

A sample is an integer tensor [token, 3] of each token's ID, position and segment. The tokens to
predict come first, after the class token if there are sentence pairs: every unit then maps one
tensor to one, and the head computes logits of these tokens only. Attention depends on the position
embeddings, not on the order of tokens. Where the task leaves samples unfilled, padding is last,
with a segment of its own, and has hidden states of zeros (`hybridperf_reference.transformer`).

If the model is ``tied``, the decoder's weight is the word embedding, as in the published one: the
first and the last stage of a pipeline then have copies of it (`hybridperf_reference.engine.ties`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from hybridperf.tasks.data.pairs import PADDING
from hybridperf.tasks.schema import build
from hybridperf_reference.bert.objective import MaskedCharacters, SegmentPairs
from hybridperf_reference.engine.chain import Chain, Unit
from hybridperf_reference.transformer import SPLIT, EncoderLayer

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["EPSILON", "BertShape", "TokenEmbeddings", "TokenHead", "bert_chain"]

EPSILON = 1e-12  #: of every LayerNorm


@dataclass(frozen=True, slots=True)
class BertShape:
    """The dimensions of a BERT, from the task's ``[model]`` table."""

    vocabulary: int
    tokens: int  #: tokens per sequence
    masked: int  #: tokens to predict per sequence
    hidden: int
    layers: int
    heads: int
    inner: int  #: hidden features of the feed-forward networks
    dropout: float
    sentences: bool  #: train next-sentence prediction too
    norm_first: bool  #: pre-norm instead of post-norm
    initial_std: float  #: standard deviation of initial weights of linear layers
    embedding_std: float  #: standard deviation of initial embeddings
    tied: bool = False  #: whether the decoder's weight is the word embedding


class TokenEmbeddings(nn.Module):
    """The sum of token, position and segment embeddings."""

    def __init__(self, shape: BertShape, *, padded: bool = False) -> None:
        super().__init__()
        self._padded = padded
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Embedding(shape.tokens, shape.hidden)
        self.sentences = nn.Embedding(2, shape.hidden)
        self.norm = nn.Identity() if shape.norm_first else _norm(shape)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map token IDs, positions and segments [batch, token, 3] to [batch, token, hidden]."""
        words, places, sentences = inputs.unbind(dim=2)
        of_text = sentences.clamp(max=1) if self._padded else sentences
        summed = self.words(words) + self.sentences(of_text) + self.places(places)
        outputs: Tensor = self.dropout(self.norm(summed))
        return outputs * (sentences != PADDING).unsqueeze(2) if self._padded else outputs


class TokenHead(nn.Module):
    """Predict the masked tokens and, from the class token, whether the second sentence follows."""

    def __init__(self, shape: BertShape) -> None:
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
        """Map hidden states [batch, token, hidden] to logits [batch, masked, vocabulary].

        With sentence pairs the result is [batch, 1 + masked, vocabulary]: the first row starts with
        the two logits of the next-sentence prediction, padded with zeros.
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
    """Build the task's BERT: embeddings, encoder layers and a head.

    Raises:
        UserError: exit status 2 if the task's ``[model]`` table does not fit `BertShape`.
    """
    shape = build(BertShape, task.model, path=task.name, at="model")
    filled = task.data.filled
    embeddings = TokenEmbeddings(shape, padded=not filled)
    units = [Unit("embeddings", embeddings)]
    for index in range(shape.layers):
        layer = EncoderLayer(
            shape.hidden,
            shape.heads,
            shape.inner,
            norm_first=shape.norm_first,
            epsilon=EPSILON,
            dropout=shape.dropout,
            padded=not filled,
        )
        units.append(Unit(f"layers.{index}", layer, SPLIT))
    head = TokenHead(shape)
    units.append(Unit("head", head))
    for unit in units:
        unit.module.apply(partial(_initialize, shape=shape))
    if shape.tied:
        head.decoder.weight = embeddings.words.weight
    return Chain(
        units=tuple(units),
        objective=(
            SegmentPairs(filled=filled)
            if shape.sentences
            else MaskedCharacters(shape.tokens, shape.masked)
        ),
        example=partial(_example, shape=shape),
    )


def _norm(shape: BertShape) -> nn.LayerNorm:
    return nn.LayerNorm(shape.hidden, EPSILON)


def _initialize(module: nn.Module, *, shape: BertShape) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=shape.initial_std)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=shape.embedding_std)


def _example(batch: int, *, shape: BertShape) -> tuple[Tensor, Tensor]:
    """Return synthetic inputs [batch, token, 3] and targets, in the shape of the objective's."""
    places = torch.arange(shape.tokens).expand(batch, -1)
    words = torch.randint(shape.vocabulary, places.shape)
    inputs = torch.stack([words, places, torch.zeros_like(words)], dim=2)
    return inputs, torch.zeros(batch, int(shape.sentences) + shape.masked, dtype=torch.int64)
