"""Mixup: train on convex combinations of two images and of their labels (Zhang et al. 2018).

Every sample has its own partner and mixing weight.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hybridperf.tasks.data import Samples
    from hybridperf_reference.engine.chain import Objective

__all__ = ["Mixup", "draw_partners"]


class Mixup:
    """The objective ``images``, trained on mixtures of two of its images."""

    def __init__(self, images: Objective, *, alpha: float, classes: int) -> None:
        """Set ``alpha`` of the Beta(alpha, alpha) distribution that mixing weights come from."""
        self._images, self._alpha, self._classes = images, alpha, classes
        self.reads_ahead = images.reads_ahead
        self.evaluation = images.evaluation
        self.loss, self.count = images.loss, images.count
        self.predictions = images.predictions

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return what ``images`` reads of samples ``indices`` [batch] and of their partners.

        The last tensor is the samples' mixing weights [batch].
        """
        partners, shares = draw_partners(seed, epoch, len(samples), self._alpha)
        own = self._images.read(samples, indices, seed, epoch)
        others = self._images.read(samples, partners[indices], seed, epoch)
        return *own, *others, torch.from_numpy(shares[indices])

    def prepare(self, *stored: Tensor) -> Tensor:
        """Return mixed images [batch, channel, height, width] from what `read` returned."""
        *both, shares = stored
        half = len(both) // 2
        pairs = zip(both[:half], both[half:], strict=True)
        return _mixed(self._images.prepare(*map(torch.cat, pairs)), shares)

    def targets(self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int) -> Tensor:
        """Return mixed class probabilities [batch, class] of the samples ``indices`` [batch]."""
        partners, shares = draw_partners(seed, epoch, len(samples), self._alpha)
        labels = torch.cat(
            [
                self._images.targets(samples, some, seed, epoch)
                for some in (indices, partners[indices])
            ]
        )
        weights = torch.from_numpy(shares[indices])
        return _mixed(functional.one_hot(labels, self._classes).to(weights.dtype), weights)


@functools.lru_cache(maxsize=1)  # drawn for a whole epoch at once, used batch by batch
def draw_partners(
    seed: int, epoch: int, samples: int, alpha: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw each sample's partner and its own weight in their mixture, both [sample].

    They depend only on seed, epoch and sample index, so every plan trains on identical mixtures.
    """
    generator = np.random.default_rng([seed, epoch, 2])
    partners = generator.integers(0, samples, size=samples)
    return partners, generator.beta(alpha, alpha, size=samples).astype(np.float32)


def _mixed(both: Tensor, shares: Tensor) -> Tensor:
    """Mix the halves of ``both`` [2 batch, ...]; ``shares`` [batch] are weights of the first."""
    first, second = both.chunk(2)
    own = shares.view(-1, *[1] * (both.dim() - 1))
    return own * first + (1 - own) * second
