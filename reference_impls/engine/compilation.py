"""Compilation: kernels made for each unit, once in the warm-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reference_impls.engine.chain import Unit

__all__ = ["apply_compile"]

_MOST_VARIANTS = 64  #: units of one class that differ in their shapes, in training and without


def apply_compile(units: Sequence[Unit]) -> None:
    """Compile each unit by itself: units alike share one compilation, and stages may be cut."""
    torch._dynamo.config.recompile_limit = _MOST_VARIANTS  # noqa: SLF001 - documented as a setting
    for unit in units:
        compiled = torch.compile(unit.module.forward, dynamic=False)
        unit.module.forward = compiled
