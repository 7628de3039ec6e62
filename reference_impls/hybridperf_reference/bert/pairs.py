"""Masked-token and next-sentence prediction on pairs of text segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hybridperf_reference.bert.masked import MaskedTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf.tasks.data.pairs import Pairs

__all__ = ["SegmentPairs"]


class SegmentPairs(MaskedTokens):
    """The pre-training objective on segment pairs (Devlin et al. 2019).

    The harness draws the pairs and their masks (`hybridperf.tasks.data.pairs`).
    """

    reads_ahead = True

    def __init__(self) -> None:
        self._drawn: tuple[tuple[bytes, int, int], Pairs] | None = None  # the last ones

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return inputs [batch, token, 3] of the pairs ``indices`` [batch]."""
        return (self.evaluation(self._draw(samples, indices, seed, epoch).inputs),)

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return targets [batch, 1 + masked] of the pairs ``indices`` [batch].

        The first of each pair is the next-sentence label, the others are token IDs.
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
        """Return the loss [] summed over pairs.

        It is the next-sentence cross-entropy plus the mean cross-entropy of the pair's masked
        tokens. ``outputs`` are [batch, 1 + masked, vocabulary], ``targets`` [batch, 1 + masked].
        """
        relations = functional.cross_entropy(outputs[:, 0, :2], targets[:, 0], reduction="sum")
        masked = targets.shape[1] - 1  # in every pair
        return super().loss(outputs[:, 1:], targets[:, 1:]) / masked + relations

    def count(self, targets: Tensor) -> int:
        """Return the number of pairs, the rows of ``targets`` [batch, 1 + masked]."""
        return len(targets)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely tokens [batch, masked] for logits [batch, 1 + masked, vocabulary].

        Next-sentence predictions, the first row, are not evaluated.
        """
        return super().predictions(outputs[:, 1:])
