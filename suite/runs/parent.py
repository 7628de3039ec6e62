"""Tie a process to the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from typing import Final

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
