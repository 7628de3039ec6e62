"""Draw many samples of many runs a few at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["blocks"]

_NUMBERS: Final = 2**20


def blocks(samples: int, runs: int) -> Iterator[int]:
    """Yield how many of ``samples`` to draw at once: memory does not grow with ``runs``."""
    most = max(1, _NUMBERS // runs)
    for done in range(0, samples, most):
        yield min(most, samples - done)
