"""What goes wrong, on which rank, and whether it does so once only."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from suite.logs.clock import LogClock
from suite.runs.pulse import read_pulse

if TYPE_CHECKING:
    from suite.runs.timed_run import TimedRun

__all__ = ["HOUR_MS", "Boom", "chosen", "meet", "strike"]

HOUR_MS = 3_600_000


class Boom(Exception):  # noqa: N818 - a trainer may call its exceptions as it likes
    """What a trainer raises."""


def chosen() -> str:
    """Return the fault of this process, or nothing where it has none or had it before."""
    fault = os.environ.get("FAULT", "")
    if not fault or os.environ.get("RANK", "0") != os.environ.get("FAULT_RANK", "0"):
        return ""
    if once := os.environ.get("FAULT_ONCE"):
        try:
            Path(once).touch(exist_ok=False)
        except FileExistsError:
            return ""
    return fault


def strike(fault: str, run: TimedRun) -> None:
    """Let ``fault`` happen, in the middle of training."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "raise":
        raise Boom("the loss is not a number")
    elif fault == "leave":
        sys.exit(0)
    elif fault == "fill the disk":
        with Path(run.spec.folder, "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    elif fault == "wall clock":
        behind_s = time.time() - HOUR_MS / 1000
        time.time = lambda: behind_s
        time.time_ns = lambda: int(behind_s * 1e9)
    elif fault == "log clock" and run._log is not None:
        run._log._clock = LogClock(run.spec.clock.wall_ms - HOUR_MS)


def meet(run: TimedRun) -> None:
    """Wait until every rank has come as far as this one, as a collective would."""
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    while (
        min(counts := [beat.batches for beat in read_pulse(run.spec.pulse, ranks)]) < counts[rank]
    ):
        time.sleep(0.001)
