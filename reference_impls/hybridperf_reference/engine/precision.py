"""Numeric precision of matrix products and convolutions, and loss scaling for fp16."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import (
    _foreach_mul_,  # one kernel for many tensors has no public name
    nn,
)

from hybridperf_reference.engine.batchnorm import is_batch_norm
from hybridperf_reference.engine.norms import local_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf_reference.engine.chain import Unit

__all__ = [
    "DTYPES",
    "LossScale",
    "apply_precision",
    "is_computed_narrow",
    "normalization_parameters",
    "set_float32_math",
]

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

# Exact types: subclasses may use weights in fp32.
_COMPUTED_NARROW = {nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d}
_NORMALIZATIONS = nn.LayerNorm, nn.RMSNorm, nn.GroupNorm


def set_float32_math(*, tf32: bool) -> dict[str, object]:
    """Enable or disable TF32 for fp32 matrix products and convolutions; return the settings.

    torch's default for convolutions is TF32. cuDNN's autotuning is disabled, so that every run of a
    plan uses the same kernels. On accelerators some kernels of convolution, attention and pooling
    add in a random order; only on processors are runs bitwise equal.
    """
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = False
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "convolution_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


def apply_precision(units: Sequence[Unit], *, dtype: torch.dtype, device: torch.device) -> None:
    """Run the forward passes of ``units`` under ``torch.autocast`` to ``dtype``; weights stay fp32.

    Mixed-precision training as in Micikevicius et al. (2018). Does nothing for fp32.
    """
    if dtype == torch.float32:
        return
    for unit in units:
        narrow = torch.autocast(device.type, dtype=dtype)
        unit.module.forward = narrow(unit.module.forward)


def is_computed_narrow(module: nn.Module) -> bool:
    """Return whether autocast computes all layers except normalization in bf16 or fp16.

    Autocast uses all other parameters, such as embeddings, in fp32.
    """
    return all(
        type(part) in _COMPUTED_NARROW or isinstance(part, _NORMALIZATIONS) or is_batch_norm(part)
        for part in module.modules()
        if next(part.parameters(recurse=False), None) is not None
    )


def normalization_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``module`` in normalization layers."""
    return [
        parameter
        for part in module.modules()
        if isinstance(part, _NORMALIZATIONS) or is_batch_norm(part)
        for parameter in part.parameters(recurse=False)
    ]


class LossScale:
    """Dynamic loss scale that keeps small gradients from vanishing in fp16; 1 in other precisions.

    It is halved after a step with non-finite gradients, which is skipped, and doubled after
    ``patience`` consecutive steps without any (Micikevicius et al. 2018).
    """

    def __init__(self, dtype: torch.dtype, patience: int = 2000) -> None:
        self._is_dynamic = dtype == torch.float16
        self._patience, self.good_steps = patience, 0
        self.factor = 65536.0 if self._is_dynamic else 1.0

    @property
    def is_dynamic(self) -> bool:
        """Return whether the loss is scaled by a factor that adapts."""
        return self._is_dynamic

    def unscale(self, parameters: Iterable[nn.Parameter], factor: float) -> None:
        """Divide the gradients of ``parameters`` [...] in place by the ``factor`` of their step."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        _foreach_mul_(local_parts(gradients), 1 / factor)

    def adapt(self, norm: float) -> bool:
        """Adapt the factor to gradients of this norm; return whether to take the step."""
        finite = math.isfinite(norm)
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.factor = max(1.0, self.factor / 2)
        elif self.good_steps == self._patience:
            self.factor, self.good_steps = self.factor * 2, 0
        return finite
