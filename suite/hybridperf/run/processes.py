"""Find and end the processes of a run, including those that its ranks started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from typing import TYPE_CHECKING, Final

import psutil

from hybridperf.run.spec import NODE_VARIABLE, RUN_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["end_processes", "end_tree", "processes_of"]

_GRACE_S: Final = 3.0  #: between SIGTERM and SIGKILL
_KILLING_S: Final = 10.0  #: time for killed processes, and children they start, to be gone


def processes_of(run: Path, node: int = 0, harness: int | None = None) -> list[psutil.Process]:
    """Return the processes that ``node`` started for the run whose specification is ``run``.

    They are identified by environment variables, which child processes inherit. With ``harness``,
    only those started by the harness with this process id are returned.
    """
    found = []
    for process in psutil.process_iter():
        try:
            variables = process.environ()
            number, _, starter = variables.get(NODE_VARIABLE, "0").partition(" ")
            mine = variables.get(RUN_VARIABLE) == str(run) and number == str(node)
            if mine and harness in {None, int(starter or 0)} and process.pid != os.getpid():
                found.append(process)
        except (psutil.Error, OSError, ValueError):  # it has ended, or belongs to another user
            continue
    return found


def end_processes(run: Path, node: int = 0, harness: int | None = None) -> None:
    """End the processes of `processes_of` together: with SIGTERM, after 3 s with SIGKILL."""
    asked = processes_of(run, node, harness)
    _signal(asked, kill=False)
    psutil.wait_procs(asked, timeout=_GRACE_S)
    deadline_s = time.monotonic() + _KILLING_S
    while (left := processes_of(run, node, harness)) and time.monotonic() < deadline_s:
        _signal(left, kill=True)
        psutil.wait_procs(left, timeout=1)


def end_tree(process: subprocess.Popen[bytes], run: Path, node: int = 0) -> None:
    """End ``process`` and everything it started for the run, and wait until they are gone.

    Processes that cleared their environment are identified as descendants of ``process``, or by
    the session in which ``process`` was started.
    """
    tree = _members(process)
    end_processes(run, node, harness=os.getpid())
    left = {*tree, *_members(process)}
    _signal(left, kill=True)
    psutil.wait_procs(left, timeout=_KILLING_S)
    if process.poll() is None:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # in uninterruptible sleep
        process.wait(_KILLING_S)


def _members(root: subprocess.Popen[bytes]) -> set[psutil.Process]:
    """Return ``root``, its descendants, and the other processes of its session."""
    found: set[psutil.Process] = set()
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(root.pid)
        found |= {process, *process.children(recursive=True)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == root.pid:
                found.add(process)
    return found


def _signal(processes: set[psutil.Process] | list[psutil.Process], *, kill: bool) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has ended
            process.kill() if kill else process.terminate()
