"""Failures of the machine, which are nobody's fault: memory or disk that ran out, or a stop.

They are established by what the kernel tells the harness, and by nothing that a trainer prints.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Final

from hybridperf.system.host import MIN_SHARED_MEMORY_BYTES, shared_memory_bytes

__all__ = ["MachineWatch", "machine_start"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_COUNTERS: Final = Path("/proc/vmstat")
_FULL_BYTES: Final = 2**20  #: free space below which a disk counts as full


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
