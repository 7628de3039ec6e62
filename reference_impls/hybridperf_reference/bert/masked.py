"""Masked-token prediction: the part of the objective that its variants share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["MaskedTokens"]


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
        return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")

    def count(self, targets: Tensor) -> int:
        """Return the number of tokens to predict, the elements of ``targets`` [batch, masked]."""
        return targets.numel()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely tokens [batch, masked] for logits [batch, masked, vocabulary]."""
        return outputs.argmax(dim=2)
