"""The processes of a run: their progress and processor time; continue, find and end them.

Each rank records its number of batches in its slot of a small file. The supervisor reads it to show
progress, and to distinguish a rank that hangs from a slow one. It measures silence by its own
clock, because monotonic clocks of two machines are not comparable.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from hybridperf.run.spec import NODE_VARIABLE, RUN_VARIABLE
from hybridperf.untrusted import PULSE_CAP_BYTES, open_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Pulse",
    "StoppedProcesses",
    "adopt_orphans",
    "end_descendants",
    "end_processes",
    "end_tree",
    "processes_of",
    "processor_seconds",
    "read_pulse",
]

_SLOT: Final = struct.Struct("<q")
_GRACE_S: Final = 3.0  #: between SIGTERM and SIGKILL
_KILLING_S: Final = 10.0  #: time for killed processes, and children they start, to be gone
_PR_SET_CHILD_SUBREAPER: Final = 36
_STOPPED: Final = "T"  #: state after a signal; a debugger's is "t" (proc_pid_stat(5))
_ENDING_S: Final = 5.0
_STILL_S: Final = 2.0  #: without progress, before stopped processes are looked for


class Pulse:
    """The slot of ``rank`` in the progress file at ``path``."""

    def __init__(self, path: Path, rank: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._offset = rank * _SLOT.size
        self._batches = 0

    def beat(self) -> None:
        """Record that another batch begins; takes about a microsecond."""
        self._batches += 1
        os.pwrite(self._descriptor, _SLOT.pack(self._batches), self._offset)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_pulse(path: Path, ranks: int) -> list[int]:
    """Return how many training batches and evaluation chunks each rank has begun, [rank]."""
    try:
        with open_bounded(path, PULSE_CAP_BYTES) as file:
            content = file.read(ranks * _SLOT.size)
    except (OSError, ValueError):  # not created yet, or not a regular file
        content = b""
    content = content.ljust(ranks * _SLOT.size, b"\0")
    return [batches for (batches,) in _SLOT.iter_unpack(content)]


def processes_of(run: Path, node: int = 0, harness: int | None = None) -> list[psutil.Process]:
    """Return the processes that ``node`` started for the run whose specification is ``run``.

    They are identified by environment variables, which child processes inherit. ``harness``
    selects the processes that the harness with this process id has started.
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
    """Continues ``root`` and its descendants when a signal from outside has stopped them.

    Else the run would wait for them until a limit of time. It looks for stopped processes only
    while there is no progress, since it reads the state of every process.
    """

    root: int
    _progress: object = None
    _moved_s: float = field(default_factory=time.monotonic)

    def look(self, progress: object = None) -> None:
        """Send SIGCONT to stopped processes if ``progress`` has been the same for 2 s."""
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
    """Return the processor time of ``roots`` and their descendants, in seconds; None if unknown.

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
        ticks += sum(map(int, fields[11:15]))  # its own, and of children that have ended
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
