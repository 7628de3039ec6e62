"""Numbers of half the width: where they are used, and how gradients stay inside their range."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import (
    _foreach_mul_,  # one kernel for many tensors has no public name
)

from reference_impls.engine.norms import local_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from reference_impls.engine.chain import Unit

__all__ = ["DTYPES", "LossScale", "apply_precision"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def apply_precision(units: Sequence[Unit], *, dtype: torch.dtype, device: torch.device) -> None:
    """Compute matrix products and convolutions of ``units`` in ``dtype``; weights stay in fp32.

    Micikevicius et al. 2018, as ``torch.autocast`` decides operation by operation.
    """
    if dtype == torch.float32:
        return
    for unit in units:
        narrow = torch.autocast(device.type, dtype=dtype)
        unit.module.forward = narrow(unit.module.forward)


class LossScale:
    """The factor of a loss whose gradients would otherwise vanish in fp16; 1 in other precisions.

    It halves after a step whose gradients are not finite, which is left out, and doubles after
    ``patience`` steps without one (Micikevicius et al. 2018).
    """

    def __init__(self, dtype: torch.dtype, patience: int = 2000) -> None:
        self._moves = dtype == torch.float16
        self._patience, self.good_steps = patience, 0
        self.factor = 65536.0 if self._moves else 1.0

    @property
    def moves(self) -> bool:
        """Tell whether there is anything to scale."""
        return self._moves

    def unscale(self, parameters: Iterable[nn.Parameter]) -> None:
        """Divide gradients by the factor."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        _foreach_mul_(local_parts(gradients), 1 / self.factor)

    def admits(self, norm: float) -> bool:
        """Tell whether a step with gradients of this norm is taken, and adapt the factor."""
        finite = math.isfinite(norm)
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.factor = max(1.0, self.factor / 2)
        elif self.good_steps == self._patience:
            self.factor, self.good_steps = self.factor * 2, 0
        return finite
