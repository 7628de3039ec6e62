"""How runs end: outcomes, requests to stop, failures of the machine, and causes of crashes.

Failures of the machine (memory or disk that ran out, or a restart) are nobody's fault. They are
established by what the kernel tells the harness, and by nothing that a trainer prints.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.system.host import MIN_SHARED_MEMORY_BYTES, shared_memory_bytes
from hybridperf.untrusted import OUTPUT_CAP_BYTES, open_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = [
    "Ending",
    "MachineWatch",
    "RunOutcome",
    "StopRequest",
    "explain_crash",
    "first_failure",
    "is_lost_peer",
    "lost_part",
    "machine_start",
    "published_reason",
    "read_output",
    "stop_on_signals",
    "strip_exception_text",
]

_FIRST_FAILURE: Final = re.compile(
    r"^First failure: rank (\d+), exit status (-?\d+)$", re.MULTILINE
)
# The first line of a traceback that is not indented. Tracebacks of several ranks may interleave
# line by line, and torch prefixes each line with the rank.
_RANK: Final = r"(?:\[rank\d+\]: )?"
_ERROR: Final = re.compile(
    rf"^{_RANK}Traceback .*\n(?:{_RANK}(?: |Traceback ).*\n){{0,2000}}+"
    rf"{_RANK}(?!Traceback )([^\s\[].*)",
    re.MULTILINE,
)
_FAILED: Final = " failed: "  #: between who and the exception, or an exit status
_TYPE: Final = re.compile(r"[A-Za-z_][\w.]{0,99}(?=:|$)|exit status -?\d+$")
_LOST_PEER: Final = re.compile(
    r"connection (?:was )?(?:closed|reset)|broken pipe|peer", re.IGNORECASE
)
#: a rank, or torchrun, that SIGTERM has ended
_TERMINATED: Final = re.compile(r"was killed by SIGTERM|got signal: 15")
_TOGETHER_S: Final = 2.0  #: most time between the same signal to ranks and to the harness
_POLL_S: Final = 0.01
_RANK_NUMBER: Final = re.compile(r"rank \d+")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_COUNTERS: Final = Path("/proc/vmstat")
_FULL_BYTES: Final = 2**20  #: free space below which a disk counts as full


class RunOutcome(enum.StrEnum):
    """The outcome of an attempt; all but one are sealed and numbered."""

    SUCCESS = "success"
    TARGET_MISSED = "target_missed"  #: ended at the task's last epoch, below the target
    INTERRUPTED = "interrupted"  #: stopped by the user, or by the end of the harness
    CRASHED = "crashed"  #: a rank failed or was killed
    #: a rank failed before the clock started, as by a typo; not sealed, and its seed is kept
    UNSTARTED = "unstarted"
    SILENT = "silent"  #: some rank made no progress for too long
    OVER_BUDGET = "over_budget"  #: initialisation, training or ending took too long
    #: the machine failed: memory or disk ran out, or it stopped
    ENVIRONMENT = "environment"
    REFUSED = "refused"  #: the harness could not reproduce the reported quality

    @property
    def completed(self) -> bool:
        """Return whether the run ended by itself, and so counts towards the result."""
        return self in {RunOutcome.SUCCESS, RunOutcome.TARGET_MISSED}


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run, with the times by the supervisor's own clock."""

    outcome: RunOutcome
    reason: str = ""  #: one clause; empty if the run ended by itself
    initialisation_s: float | None = None  #: from launch to run_start
    run_s: float | None = None  #: from run_start to run_stop
    lost: str = ""  #: part of the run that ended by itself too early, such as ``node 1``
    back: str = ""  #: node with which the run is to go on from its checkpoint, such as ``node 1``


@dataclass(slots=True)
class StopRequest:
    """A request to stop: the last signal received, or None."""

    signal: signal.Signals | None = None

    def explains(self, reason: str) -> bool:
        """Return whether the ranks that crashed for ``reason`` were to stop with this process.

        Slurm sends SIGTERM to every process of a job, and ranks may be the first to act on it.
        """
        deadline_s = time.monotonic() + _TOGETHER_S
        while self.signal is None and _TERMINATED.search(reason) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return self.signal is not None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM in a `StopRequest`, which supervision polls, while the body runs.

    Outside the main thread no signal is recorded.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # Python allows handlers in the main thread only
        return

    def record(number: int, _: FrameType | None) -> None:
        request.signal = signal.Signals(number)

    before = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def machine_start() -> str:
    """Return the kernel's boot id, which identifies the start of this machine's monotonic clock.

    Empty if the system has none.
    """
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


class MachineWatch:
    """The state of the machine when a run began, to find out why it failed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._killed = folder, _killed_for_memory()

    def failure(self, status: int | None) -> str:
        """Return how the machine failed a run with this exit status; ``""`` if it did not."""
        if status == -signal.SIGKILL and _killed_for_memory() > self._killed:
            return "the kernel ended a process for lack of memory"
        # SIGBUS: the kernel has no page for memory that is mapped.
        if status == -signal.SIGBUS and shared_memory_bytes() < MIN_SHARED_MEMORY_BYTES:
            size = f"its /dev/shm has {shared_memory_bytes() / 2**20:.0f} MiB"
            return f"{size}, too little for the memory that its processes share"
        if shutil.disk_usage(self._folder).free < _FULL_BYTES:
            return f"{os.strerror(28)} in the folder of the run"
        return ""


def _killed_for_memory() -> int:
    """Return how many processes the kernel has killed for lack of memory, on the whole machine."""
    try:
        for line in _COUNTERS.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        pass
    return 0


def read_output(path: Path, start: int = 0) -> str:
    """Return the last 256 KiB of the output file at ``path``, but no byte before ``start``.

    It is empty if the file cannot be read.
    """
    try:
        with open_bounded(path, sys.maxsize) as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - OUTPUT_CAP_BYTES))
            return file.read(OUTPUT_CAP_BYTES).decode(errors="replace")
    except (OSError, ValueError):  # removed or replaced by the trainer
        return ""


def first_failure(rank: int, status: int) -> str:
    """Return the output's line that names the rank that failed first, for `explain_crash`."""
    return f"\nFirst failure: rank {rank}, exit status {status}"


def explain_crash(output: str, status: int) -> str:
    """Return the cause of a crash, from the ranks' output and exit status, as one clause."""
    who, code = "the trainer", status
    if found := _FIRST_FAILURE.search(output):
        who, code = f"rank {found[1]}", int(found[2])
    if code < 0:
        return f"{who} was killed by {_signal_name(-code)}"
    # The root cause raises first; errors of other ranks about the lost peer come later.
    if errors := _ERROR.findall(output):
        return f"{who}{_FAILED}{visible(errors[0].strip())[:300].rstrip('.')}"
    return f"{who} ended before its run did" if code == 0 else f"{who}{_FAILED}exit status {code}"


def strip_exception_text(reason: str) -> str:
    """Return the ``reason`` of a crash with the type of its exception, but without its text."""
    who, failed, exception = reason.partition(_FAILED)
    if not failed:
        return reason
    kind = _TYPE.match(exception)
    return f"{who}{failed}{kind[0] if kind else 'an exception'}"


def published_reason(reason: str, *, exceptions: bool) -> str:
    """Return the ``reason`` of an ending without what must not be published.

    ``exceptions``: their texts may be, as far as they look like no secret.
    """
    from hybridperf.system.privacy import Guard  # lazily: the starter of ranks imports this module

    return Guard.of_this_machine().redacted(reason if exceptions else strip_exception_text(reason))


def is_lost_peer(reason: str) -> bool:
    """Return whether ``reason`` is a lost connection, whose cause is on another rank."""
    return _LOST_PEER.search(reason) is not None


def lost_part(reason: str) -> str:
    """Return the rank that failed first by the ``reason`` of a crash; else all ranks."""
    return found[0] if (found := _RANK_NUMBER.match(reason)) else "all ranks"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
