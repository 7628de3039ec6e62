"""What all objectives of masked tokens do: as many to predict in every sample, each one counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MaskedTokens"]


class MaskedTokens:
    """Predict tokens that were masked.

    Every sample has as many, so that means over equal parts of a batch average to the whole's.
    """

    def prepare(self, *stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets as they are."""
        inputs, targets = stored
        return inputs, targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy, averaged over the tokens to predict."""
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the likeliest token at each masked place [batch, masked]."""
        return outputs.argmax(dim=2)
