"""Learn to read words that were masked, and whether one segment of text follows the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from reference_impls.bert.masked import MaskedTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from suite.tasks.data import Samples

__all__ = ["SegmentPairs"]


class SegmentPairs(MaskedTokens):
    """The objective of pre-training on pairs of segments (Devlin et al. 2019).

    The harness draws the pairs and what of them is masked (`suite.tasks.data.texts.pairs`).
    """

    reads_ahead = True

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return inputs [batch, tokens, 3] and targets [batch, 1 + masked], the relation first."""
        pairs = samples.inputs.draw(indices, seed, epoch)
        targets = np.concatenate([pairs.relations[:, None], pairs.targets], axis=1)
        return self.evaluation(pairs.inputs), torch.from_numpy(targets)

    def evaluation(self, stored: Any) -> Tensor:
        """Return inputs [batch, tokens, 3] as they are stored."""
        return torch.from_numpy(stored.astype(np.int64))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of the tokens to predict, and of the relations."""
        relation = functional.cross_entropy(outputs[:, 0, :2], targets[:, 0])
        return super().loss(outputs[:, 1:], targets[:, 1:]) + relation

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the likeliest token at each masked place [batch, masked]; no relation counts."""
        return super().predictions(outputs[:, 1:])
