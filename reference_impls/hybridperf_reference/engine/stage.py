"""A pipeline stage: consecutive units of a chain, with the chain's parameter names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf_reference.engine.chain import Unit

__all__ = ["Stage"]

_NARROW = {torch.bfloat16, torch.float16}


class Stage(nn.Module):
    """Apply ``units`` in order.

    State-dict keys are the chain's global parameter names, whichever units the stage holds, so a
    checkpoint does not depend on the plan.
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
        """Return the last unit's outputs [batch, ...] for ``inputs`` [batch, ...].

        Outputs are contiguous; fp16 and bf16 are converted to fp32.
        """
        if inputs.dim() == 4:  # images: convolutions are 1.3 times as fast channels-last
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if inputs.requires_grad:  # gradients are sent between stages too
            inputs.register_hook(Tensor.contiguous)
        outputs = inputs
        for module in self._in_order:
            outputs = module(outputs)
        if outputs.dtype in _NARROW:  # stage boundaries and losses are fp32
            outputs = outputs.float()
        return outputs.contiguous()
