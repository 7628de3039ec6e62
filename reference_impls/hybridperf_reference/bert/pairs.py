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

__all__ = ["SegmentPairs"]


class SegmentPairs(MaskedTokens):
    """The pre-training objective on segment pairs (Devlin et al. 2019).

    The harness draws the pairs and their masks (`hybridperf.tasks.data.texts.pairs`).
    """

    reads_ahead = True

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return inputs [batch, token, 3] and targets [batch, 1 + masked].

        The first target is the next-sentence label.
        """
        pairs = samples.inputs.draw(indices, seed, epoch)
        targets = np.concatenate([pairs.relations[:, None], pairs.targets], axis=1)
        return self.evaluation(pairs.inputs), torch.from_numpy(targets)

    def evaluation(self, stored: Any) -> Tensor:
        """Return the stored inputs [batch, token, 3] as int64."""
        return torch.from_numpy(stored.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss summed over pairs.

        It is the next-sentence cross-entropy plus the mean cross-entropy of the pair's masked
        tokens. ``outputs`` are [batch, 1 + masked, vocabulary], ``targets`` [batch, 1 + masked].
        """
        relations = functional.cross_entropy(outputs[:, 0, :2], targets[:, 0], reduction="sum")
        masked = targets.shape[1] - 1  # in every pair
        return super().loss(outputs[:, 1:], targets[:, 1:]) / masked + relations

    def count(self, targets: Tensor) -> int:
        """Return the number of pairs."""
        return len(targets)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely token [batch, masked] at each masked position.

        Next-sentence predictions are not evaluated.
        """
        return super().predictions(outputs[:, 1:])
