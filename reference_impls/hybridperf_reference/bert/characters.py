"""Masked-character prediction on windows of text, with new windows and masks in every epoch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hybridperf.tasks.data.topics import CHARACTERS, MASK
from hybridperf_reference.bert.masked import MaskedTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples

__all__ = ["MaskedCharacters"]


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
        return (_packed(characters, order),)

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return the characters to predict [batch, masked] in the blocks ``indices`` [batch]."""
        characters, _, _ = self._windows(samples, indices, seed, epoch)
        return torch.from_numpy(characters[:, : self._masked].copy())

    def evaluation(self, stored: Any) -> Tensor:
        """Return inputs [batch, token, 3] for windows [batch, token] with masked characters."""
        order = np.argsort(stored != MASK, axis=1, kind="stable")
        return _packed(np.take_along_axis(stored, order, axis=1).astype(np.int64), order)

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
        """Draw each window's start, its token order with those to predict first, and replacements.

        Shapes: [sample], [sample, token], [sample, masked]. A negative replacement leaves the
        character unchanged.
        """
        generator = np.random.default_rng([seed, epoch, 1])
        starts = generator.integers(0, length - self._tokens + 1, size=samples)
        order = generator.random((samples, self._tokens)).argsort(axis=1)
        kinds = generator.random((samples, self._masked))
        others = generator.integers(1, CHARACTERS, size=(samples, self._masked))
        return starts, order, np.where(kinds < 0.8, MASK, np.where(kinds < 0.9, others, -1))


def _packed(characters: NDArray[np.int64], places: NDArray[np.int64]) -> Tensor:
    """Return inputs [batch, token, 3] of characters, positions, and segments, which are zero."""
    return torch.from_numpy(np.stack([characters, places, np.zeros_like(places)], axis=2))
