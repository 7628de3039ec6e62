"""The doctor on resources: room, memory, a clock and a loopback to run with."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from suite.systems import files
from suite.systems.diagnosis import Diagnosis, judge
from suite.systems.memory import available_bytes
from suite.systems.mlperf import gibibytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["examine_resources"]

_GIB = 1 << 30
_LEAST_DISK_BYTES = _GIB
_RANKS = 4  # the largest plan of the laptop tasks
_RANK_BYTES = _GIB
_LEAST_SHARED_BYTES = _GIB // 4
# Clocks that are read without a system call; others cost a microsecond or more per reading.
_FAST_CLOCKS = {"arch_sys_counter", "hyperv_clocksource_tsc_page", "kvm-clock", "timebase", "tsc"}


def examine_resources(out: Path | None = None, root: Path = Path("/")) -> Iterator[Diagnosis]:
    """Examine the output folder (the working folder where None), memory, loopback and clock."""
    folder = (out or Path()).absolute()
    # The run makes the folder itself: what counts is the nearest one that exists.
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    yield _writable(folder)
    yield _disk(folder)
    yield _memory(root)
    yield _shared_memory(root)
    yield _loopback()
    yield _clock(root)


def _writable(folder: Path) -> Diagnosis:
    try:
        with tempfile.TemporaryFile(dir=folder):
            problem = ""
    except OSError as error:
        problem = error.strerror or str(error)
    return judge(
        "output folder",
        not problem,
        f"cannot write: {problem}" if problem else "writable",
        "Choose a folder that you may write to with --out, or change its permissions.",
    )


def _disk(folder: Path) -> Diagnosis:
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = 0
    return judge(
        "free disk",
        free >= _LEAST_DISK_BYTES,
        gibibytes(free) or "none",
        f"Free {gibibytes(_LEAST_DISK_BYTES)} or choose another disk with --out.",
    )


def _memory(root: Path) -> Diagnosis:
    free = available_bytes(root)
    return judge(
        "memory",
        free is None or free >= _RANKS * _RANK_BYTES,
        "unknown" if free is None else f"{gibibytes(free)} available",
        f"Run plans of fewer than {_RANKS} ranks, or free {gibibytes(_RANK_BYTES)} for each.",
        needed=False,
    )


def _shared_memory(root: Path) -> Diagnosis:
    try:
        stats = os.statvfs(root / "dev/shm")
        size = stats.f_frsize * stats.f_blocks
    except OSError:
        size = 0
    return judge(
        "shared memory",
        size >= _LEAST_SHARED_BYTES,
        gibibytes(size) or "none",
        "Start the container with --shm-size=1g: data loaders and NCCL share memory there.",
        needed=False,
    )


def _loopback() -> Diagnosis:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
        problem = ""
    except OSError as error:
        problem = error.strerror or str(error)
    return judge(
        "loopback network",
        not problem,
        problem or "ranks can meet on this machine",
        "Bring the loopback interface up with 'ip link set lo up', or allow it in the sandbox.",
    )


def _clock(root: Path) -> Diagnosis:
    facts = time.get_clock_info("monotonic")
    name = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    source = files.text(root / name) or "unknown"
    return judge(
        "clock",
        facts.monotonic and source in _FAST_CLOCKS,
        f"monotonic, source {source}" if facts.monotonic else "not monotonic",
        "Choose a faster clock source, such as clocksource=tsc on the kernel's command line.",
        needed=not facts.monotonic,
    )
