"""How a run ended."""

from __future__ import annotations

import enum
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.findings import visible

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Ending", "Outcome", "explain_crash", "read_output", "tells_of_lost_peer"]


class Outcome(enum.StrEnum):
    """The ways in which an attempt can end; all are sealed, numbered and counted."""

    SUCCESS = "success"
    TARGET_MISSED = "target_missed"  #: by itself, at the task's last epoch
    INTERRUPTED = "interrupted"  #: by the user, or with the harness
    CRASHED = "crashed"  #: a rank failed or was killed
    SILENT = "silent"  #: some rank made no progress for too long
    OVER_BUDGET = "over_budget"  #: initialisation, training or ending took too long
    REFUSED = "refused"  #: the quality did not come back when the harness scored the model

    @property
    def completed(self) -> bool:
        """Tell whether the run ended by itself, and so counts towards the result."""
        return self in {Outcome.SUCCESS, Outcome.TARGET_MISSED}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, and what the supervisor's own clock said."""

    outcome: Outcome
    reason: str = ""  #: one clause, where the run did not end by itself
    initialisation_s: float | None = None  #: launch to run_start
    run_s: float | None = None  #: run_start to run_stop


_ROOT_CAUSE: Final = re.compile(
    r"Root Cause.*?rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", re.DOTALL
)
# The first line of a traceback that is not indented. Ranks print theirs at once, line by line, and
# torch puts the rank before each line.
_RANK: Final = r"(?:\[rank\d+\]: )?"
_ERROR: Final = re.compile(
    rf"^{_RANK}Traceback .*\n(?:{_RANK}(?: |Traceback ).*\n){{0,2000}}+"
    rf"{_RANK}(?!Traceback )([^\s\[].*)",
    re.MULTILINE,
)
_LOST_PEER: Final = re.compile(
    r"connection (?:was )?(?:closed|reset)|broken pipe|peer", re.IGNORECASE
)
_CAP_BYTES: Final = 2**18  #: a trainer may print without end


def read_output(path: Path) -> str:
    """Return the last of what the ranks printed."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _CAP_BYTES))
        return file.read(_CAP_BYTES).decode(errors="replace")


def explain_crash(output: str, status: int) -> str:
    """Return in one clause why the ranks ended, from what they printed and the exit status."""
    who, code = "the trainer", status
    if found := _ROOT_CAUSE.search(output):
        who, code = f"rank {found[1]}", int(found[2])
    if code < 0:
        return f"{who} was killed by {_signal_name(-code)}"
    # The root cause raises first; what other ranks say of their lost peer comes later.
    errors = [line for line in _ERROR.findall(output) if "ChildFailedError" not in line]
    if errors:
        return f"{who} failed: {visible(errors[0].strip())[:300].rstrip('.')}"
    return f"{who} ended before its run did" if code == 0 else f"{who} failed: exit status {code}"


def tells_of_lost_peer(reason: str) -> bool:
    """Tell whether ranks ended because another one had: then another node knows why."""
    return _LOST_PEER.search(reason) is not None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
