"""Descendants of a process, wherever they went: adopt, continue, end them, and count their time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["StoppedProcesses", "adopt_orphans", "end_descendants", "processor_seconds"]

_PR_SET_CHILD_SUBREAPER: Final = 36
_STOPPED: Final = "T"  #: by a signal, not by a debugger, which is "t" (proc_pid_stat(5))
_ENDING_S: Final = 5.0
_STILL_S: Final = 2.0  #: without progress, before stopped processes are looked for


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
        if not (left := _descendants(os.getpid())):
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.001)


@dataclass(slots=True)
class StoppedProcesses:
    """Continues what a signal from outside has stopped: the process ``root``, and descendants.

    Nobody else would, and the run would wait for them until some limit of time. They are looked
    for only while nothing moves, since that reads the state of every process.
    """

    root: int
    _progress: object = None
    _moved_s: float = field(default_factory=time.monotonic)

    def look(self, progress: object = None) -> None:
        """Send SIGCONT to the stopped ones if ``progress`` has been the same for 2 s."""
        now_s = time.monotonic()
        if progress != self._progress:
            self._progress, self._moved_s = progress, now_s
        elif now_s - self._moved_s > _STILL_S:
            self._moved_s = now_s
            states = _processes()
            for process in (self.root, *_descendants(self.root)):
                if states.get(process, ("", 0))[0] == _STOPPED:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process, signal.SIGCONT)


def processor_seconds(roots: Iterable[int]) -> float | None:
    """Return the processor time of ``roots`` and of all that they started; None if unknown.

    The kernel counts it, in steps of 10 ms on most systems. Source: proc_pid_stat(5).
    """
    ticks, waiting = 0, [*roots]
    while waiting:
        folder = Path("/proc", str(waiting.pop()))
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children = [each.read_text() for each in (folder / "task").glob("*/children")]
        except OSError:  # it has just ended
            return None
        ticks += sum(map(int, fields[11:15]))  # its own, and that of children that have ended
        waiting += map(int, " ".join(children).split())
    return ticks / os.sysconf("SC_CLK_TCK")


def _descendants(root: int) -> list[int]:
    """Return the process ids of all descendants of ``root``."""
    children: dict[int, list[int]] = {}
    for process, (_, parent) in _processes().items():
        children.setdefault(parent, []).append(process)
    found, waiting = list[int](), [root]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def _processes() -> dict[int, tuple[str, int]]:
    """Return state and parent of every process, by process id."""
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a name that is a number is a process
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                # The name of the program, in parentheses, may contain anything.
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                found[int(entry)] = fields[0], int(fields[1])
    return found
