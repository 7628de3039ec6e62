"""Find and end every process of a run, whoever started it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import psutil

from suite.runs.spec import NODE_VARIABLE, RUN_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["end_processes", "processes_of"]

_GRACE_S: Final = 3.0  #: between asking a process to end and ending it


def processes_of(order: Path, node: int = 0) -> list[psutil.Process]:
    """Return the processes that ``node`` started for the run whose order is the file ``order``.

    They are known by their environment, which they inherit however they were started.
    """
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            mine = (variables.get(RUN_VARIABLE), variables.get(NODE_VARIABLE, "0"))
            if process.pid != os.getpid() and mine == (str(order), str(node)):
                found.append(process)
        except (psutil.Error, OSError):  # it ended meanwhile, or is somebody else's
            continue
    return found


def end_processes(order: Path, node: int = 0) -> None:
    """End all processes of the run on ``node`` together: asked first, then without asking."""
    asked = processes_of(order, node)
    for process in asked:
        _signal(process, kill=False)
    psutil.wait_procs(asked, timeout=_GRACE_S)
    deadline_s = time.monotonic() + 10
    while (left := processes_of(order, node)) and time.monotonic() < deadline_s:
        for process in left:
            _signal(process, kill=True)
        psutil.wait_procs(left, timeout=1)


def _signal(process: psutil.Process, *, kill: bool) -> None:
    try:
        process.kill() if kill else process.terminate()
    except psutil.Error:  # it ended meanwhile
        return
