"""Learn from each image mixed with another one of the training set, and from both their classes.

Mixup (Zhang et al. 2018), with a partner and a share of its own for every sample.
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

    from reference_impls.engine.chain import Objective
    from suite.tasks.data import Samples

__all__ = ["Mixup", "draw_partners"]


class Mixup:
    """The objective ``images`` of classifying images, on mixtures of two of them."""

    def __init__(self, images: Objective, *, alpha: float, classes: int) -> None:
        """Take the parameter of the distribution Beta(alpha, alpha) that shares are drawn from."""
        self._images, self._alpha, self._classes = images, alpha, classes
        self.reads_ahead = images.reads_ahead
        self.evaluation = images.evaluation
        self.loss, self.predictions = images.loss, images.predictions

    def read(
        self, samples: Samples, indices: NDArray[Any], seed: int, epoch: int
    ) -> tuple[Tensor, ...]:
        """Return the samples, their partners, and the samples' shares."""
        partners, shares = draw_partners(seed, epoch, len(samples), self._alpha)
        own = self._images.read(samples, indices, seed, epoch)
        others = self._images.read(samples, partners[indices], seed, epoch)
        return *own, *others, torch.from_numpy(shares[indices])

    def prepare(self, *stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return mixed images, and probabilities of their classes [batch, class]."""
        *both, shares = stored
        half = len(both) // 2
        pairs = zip(both[:half], both[half:], strict=True)
        inputs, labels = self._images.prepare(*map(torch.cat, pairs))
        targets = functional.one_hot(labels, self._classes).to(shares.dtype)
        return _mixed(inputs, shares), _mixed(targets, shares)


@functools.lru_cache(maxsize=1)  # one epoch's are drawn together, and asked for batch by batch
def draw_partners(
    seed: int, epoch: int, samples: int, alpha: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw for each sample the index of its partner, and its own share of their mixture.

    They depend on seed, epoch and sample alone, so every plan sees the same mixtures.
    """
    generator = np.random.default_rng([seed, epoch, 2])
    partners = generator.integers(0, samples, size=samples)
    return partners, generator.beta(alpha, alpha, size=samples).astype(np.float32)


def _mixed(both: Tensor, shares: Tensor) -> Tensor:
    """Return the first half of ``both`` mixed with the second: ``shares`` of the first."""
    first, second = both.chunk(2)
    own = shares.view(-1, *[1] * (both.dim() - 1))
    return own * first + (1 - own) * second
