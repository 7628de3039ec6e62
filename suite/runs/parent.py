"""Tie a process to the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import Final

__all__ = ["PARENT_VARIABLE", "die_with_parent"]

PARENT_VARIABLE: Final = "HYBRIDPERF_PARENT"  #: process id of who starts the processes of a run
_PR_SET_PDEATHSIG: Final = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that ends (Linux).

    A parent that ended before is known by its process id in `PARENT_VARIABLE`, which then names
    this process to those that it starts. For the first lines of a process, once.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(PARENT_VARIABLE) not in {None, str(os.getppid())}:
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ[PARENT_VARIABLE] = str(os.getpid())
