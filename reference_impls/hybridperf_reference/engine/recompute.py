"""Activation recomputation: discard activations in the forward pass, recompute them in backward."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor, nn

    from hybridperf_reference.engine.chain import Unit

__all__ = ["apply_recompute"]


def apply_recompute(units: Sequence[Unit], *, every: int) -> None:
    """Checkpoint every ``every``-th unit, keeping only its inputs for backward; 0 for none.

    Chen et al. 2016. The recomputation uses the buffers as they were before the first pass, and
    leaves them unchanged.
    """
    for unit in units[::every] if every else ():
        unit.module.forward = partial(
            checkpoint,
            unit.module.forward,
            use_reentrant=False,
            context_fn=partial(_contexts, unit.module),
        )


_Context = contextlib.AbstractContextManager[None]


def _contexts(module: nn.Module) -> tuple[_Context, _Context]:
    """Return the contexts for the first pass of ``module`` and for its recomputation."""
    kept: list[dict[str, Tensor]] = []
    return _save_buffers(module, kept), _use_saved_buffers(module, kept)


@contextlib.contextmanager
def _save_buffers(module: nn.Module, kept: list[dict[str, Tensor]]) -> Iterator[None]:
    """Copy the buffers of ``module`` into ``kept`` before a training pass."""
    if torch.is_grad_enabled() and module.training:
        kept += [
            {name: buffer.clone() for name, buffer in _buffers(part)} for part in module.modules()
        ]
    yield


@contextlib.contextmanager
def _use_saved_buffers(module: nn.Module, kept: list[dict[str, Tensor]]) -> Iterator[None]:
    """Swap the buffers in ``kept`` into ``module`` for the duration of a recomputation."""
    parts = list(module.modules())
    newest = [dict(_buffers(part)) for part in parts]
    try:
        for part, buffers in zip(parts, kept, strict=False):
            part._buffers.update(buffers)  # noqa: SLF001 - swapped without a copy
        yield
    finally:
        for part, buffers in zip(parts, newest, strict=True):
            part._buffers.update(buffers)  # noqa: SLF001


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return module.named_buffers(recurse=False)
