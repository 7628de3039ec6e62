"""Recomputation: activations thrown away after the forward pass and computed again in backward."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

from torch.utils.checkpoint import checkpoint

from reference_impls.engine.batchnorm import frozen_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from reference_impls.engine.chain import Unit

__all__ = ["apply_recompute"]


def apply_recompute(units: Sequence[Unit], *, every: int) -> None:
    """Keep only the inputs of every ``every``-th unit for its backward pass; 0 for none.

    Chen et al. 2016. A unit's running statistics are updated by its first pass alone.
    """
    for unit in units[::every] if every else ():
        contexts = partial(_contexts, unit.module)
        unit.module.forward = partial(
            checkpoint, unit.module.forward, use_reentrant=False, context_fn=contexts
        )


def _contexts(
    module: nn.Module,
) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
    """Return what surrounds the first pass of ``module``, and what surrounds the second."""
    return contextlib.nullcontext(), frozen_statistics(module)
