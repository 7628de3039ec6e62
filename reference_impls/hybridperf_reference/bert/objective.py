"""Masked-token prediction on windows of text, and with next sentences on pairs of segments."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridperf.tasks.data.pairs import NOT_PREDICTED
from hybridperf.tasks.data.topics import CHARACTERS, MASK

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf.tasks.data.pairs import Pairs

__all__ = ["MaskedCharacters", "MaskedTokens", "SegmentPairs"]


class MaskedTokens:
    """Cross-entropy and predictions over masked tokens."""

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return inputs [batch, token, 3] unchanged."""
        (inputs,) = stored
        return inputs

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy [] summed over the tokens to predict.

        ``outputs`` are logits [batch, masked, vocabulary], ``targets`` token IDs [batch, masked].
        """
        return functional.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=NOT_PREDICTED
        )

    def count(self, targets: Tensor) -> Tensor | int | tuple[int, ...]:
        """Return the number of tokens to predict, the elements of ``targets`` [batch, masked]."""
        return targets.numel()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely tokens [batch, masked] for logits [batch, masked, vocabulary]."""
        return outputs.argmax(dim=2)


class MaskedCharacters(MaskedTokens):
    """The objective of the laptop task: one random window of each text block per epoch.

    ``masked`` characters per window are to be predicted. As in Devlin et al. (2019), 80 % of them
    are masked, 10 % replaced by a random character and 10 % unchanged.
    """

    reads_ahead = False

    def __init__(self, tokens: int, masked: int) -> None:
        self._tokens, self._masked = tokens, masked
        # The random numbers of an epoch are drawn at once, and used batch by batch.
        self._draw = functools.lru_cache(maxsize=1)(self._draw_epoch)

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return inputs [batch, token, 3] of the blocks ``indices`` [batch]."""
        characters, order, replacements = self._windows(samples, indices, seed, epoch)
        targets = characters[:, : self._masked]
        characters[:, : self._masked] = np.where(replacements < 0, targets, replacements)
        return (_pack(characters, order),)

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return the characters to predict [batch, masked] in the blocks ``indices`` [batch]."""
        characters, _, _ = self._windows(samples, indices, seed, epoch)
        return torch.from_numpy(characters[:, : self._masked].copy())

    def evaluation(self, stored: Any) -> Tensor:
        """Return inputs [batch, token, 3] for windows [batch, token] with masked characters."""
        order = np.argsort(stored != MASK, axis=1, kind="stable")
        return _pack(np.take_along_axis(stored, order, axis=1).astype(np.int64), order)

    def _windows(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[NDArray[np.int64], ...]:
        """Return the windows' characters, in the order drawn, that order, and replacements.

        Shapes: [batch, token], [batch, token], [batch, masked].
        """
        starts, order, replacements = (
            numbers[indices] for numbers in self._draw(seed, epoch, *samples.inputs.shape)
        )
        places = starts[:, None] + order
        characters = np.take_along_axis(samples.inputs[indices], places, axis=1)
        return characters.astype(np.int64), order, replacements

    def _draw_epoch(
        self, seed: int, epoch: int, samples: int, length: int
    ) -> tuple[NDArray[np.int64], ...]:
        """Draw each window's start, its token order (tokens to predict first), and replacements.

        Shapes: [sample], [sample, token], [sample, masked]. A negative replacement leaves the
        character unchanged.
        """
        generator = np.random.default_rng([seed, epoch, 1])
        starts = generator.integers(0, length - self._tokens + 1, size=samples)
        order = generator.random((samples, self._tokens)).argsort(axis=1)
        kinds = generator.random((samples, self._masked))
        others = generator.integers(1, CHARACTERS, size=(samples, self._masked))
        return starts, order, np.where(kinds < 0.8, MASK, np.where(kinds < 0.9, others, -1))


def _pack(characters: NDArray[np.int64], places: NDArray[np.int64]) -> Tensor:
    """Return inputs [batch, token, 3] of characters, positions, and segments, which are zero."""
    return torch.from_numpy(np.stack([characters, places, np.zeros_like(places)], axis=2))


class SegmentPairs(MaskedTokens):
    """The pre-training objective on segment pairs (Devlin et al. 2019).

    The loss is the mean next-sentence cross-entropy over the pairs of the global batch plus the
    mean cross-entropy over its masked tokens, as in MLPerf's BERT. The harness draws the pairs and
    their masks (`hybridperf.tasks.data.pairs`).
    """

    reads_ahead = True

    def __init__(self, *, filled: bool = True) -> None:
        self._filled = filled  # every pair then has as many masked tokens
        self._drawn: tuple[tuple[bytes, int, int], Pairs] | None = None  # the last pairs

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return inputs [batch, token, 3] of the pairs ``indices`` [batch]."""
        return (self.evaluation(self._draw(samples, indices, seed, epoch).inputs),)

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return targets [batch, 1 + masked] of the pairs ``indices`` [batch].

        Each row is the next-sentence label, then the token IDs.
        """
        pairs = self._draw(samples, indices, seed, epoch)
        return torch.from_numpy(np.concatenate([pairs.relations[:, None], pairs.targets], axis=1))

    def _draw(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Pairs:
        """Return the pairs; drawn once for their inputs and their targets."""
        which = (indices.tobytes(), seed, epoch)
        if self._drawn is None or self._drawn[0] != which:
            self._drawn = which, samples.inputs.draw(indices, seed, epoch)
        return self._drawn[1]

    def evaluation(self, stored: Any) -> Tensor:
        """Return the stored inputs [batch, token, 3] as int64."""
        return torch.from_numpy(stored.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropies [2] summed over pairs and over masked tokens.

        ``outputs`` are [batch, 1 + masked, vocabulary], ``targets`` [batch, 1 + masked].
        """
        relations = functional.cross_entropy(outputs[:, 0, :2], targets[:, 0], reduction="sum")
        return torch.stack([relations, super().loss(outputs[:, 1:], targets[:, 1:])])

    def count(self, targets: Tensor) -> Tensor | tuple[int, ...]:
        """Return the numbers of pairs and of masked tokens in ``targets`` [batch, 1 + masked]."""
        if self._filled:
            return len(targets), targets[:, 1:].numel()
        masked = (targets[:, 1:] != NOT_PREDICTED).sum()
        return torch.stack([torch.full_like(masked, len(targets)), masked])

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely tokens [batch, masked] for logits [batch, 1 + masked, vocabulary].

        Next-sentence predictions, the first row, are not evaluated.
        """
        return super().predictions(outputs[:, 1:])
