"""Descendants of a process, wherever they went: adopt the orphans among them, end them all."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Final

__all__ = ["adopt_orphans", "end_descendants"]

_PR_SET_CHILD_SUBREAPER: Final = 36
_ENDING_S: Final = 5.0


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (Linux, ``prctl(2)``)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill all descendants of this process, which adopts orphans, and wait until they are gone."""
    deadline_s = time.monotonic() + _ENDING_S
    while time.monotonic() < deadline_s:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not (left := _descendants()):
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.001)


def _descendants() -> list[int]:
    """Return the process ids of all descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a name that is a number is a process
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                # The name of the program, in parentheses, may contain anything.
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found, waiting = list[int](), [os.getpid()]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found
