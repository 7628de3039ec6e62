"""The outcome of a run, and the diagnosis of a crash from the ranks' output."""

from __future__ import annotations

import enum
import os
import re
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.untrusted import OUTPUT_CAP_BYTES, open_bounded

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Ending",
    "Outcome",
    "explain_crash",
    "first_failure",
    "read_output",
    "tells_of_lost_peer",
    "without_text",
]


class Outcome(enum.StrEnum):
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
        return self in {Outcome.SUCCESS, Outcome.TARGET_MISSED}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, with the times measured by the supervisor's own clock."""

    outcome: Outcome
    reason: str = ""  #: one clause; empty if the run ended by itself
    initialisation_s: float | None = None  #: from launch to run_start
    run_s: float | None = None  #: from run_start to run_stop


# What torchrun prints, and `first_failure`.
_ROOT_CAUSE: Final = re.compile(
    r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)"
    r"|^First failure: rank (\d+), exit status (-?\d+)$",
    re.DOTALL | re.MULTILINE,
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


def read_output(path: Path) -> str:
    """Return the last 256 KiB of the output file at ``path``; empty if it cannot be read."""
    try:
        with open_bounded(path, sys.maxsize) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - OUTPUT_CAP_BYTES))
            return file.read(OUTPUT_CAP_BYTES).decode(errors="replace")
    except (OSError, ValueError):  # removed or replaced by the trainer
        return ""


def first_failure(rank: int, status: int) -> str:
    """Return the line by which the output says which rank failed first, for `explain_crash`."""
    return f"\nFirst failure: rank {rank}, exit status {status}"


def explain_crash(output: str, status: int) -> str:
    """Diagnose from the ranks' output and exit status why they ended; return one clause."""
    who, code = "the trainer", status
    if found := _ROOT_CAUSE.search(output):
        who, code = f"rank {found[1] or found[3]}", int(found[2] or found[4])
    if code < 0:
        return f"{who} was killed by {_signal_name(-code)}"
    # The root cause raises first; errors of other ranks about the lost peer come later.
    errors = [line for line in _ERROR.findall(output) if "ChildFailedError" not in line]
    if errors:
        return f"{who}{_FAILED}{visible(errors[0].strip())[:300].rstrip('.')}"
    return f"{who} ended before its run did" if code == 0 else f"{who}{_FAILED}exit status {code}"


def without_text(reason: str) -> str:
    """Return the ``reason`` of a crash with the type of its exception, but without its text."""
    who, failed, said = reason.partition(_FAILED)
    if not failed:
        return reason
    stated = _TYPE.match(said)
    return f"{who}{failed}{stated[0] if stated else 'an exception'}"


def tells_of_lost_peer(reason: str) -> bool:
    """Return whether ``reason`` is a lost connection, so that the cause is on another rank."""
    return _LOST_PEER.search(reason) is not None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
