"""Run several ranks on this machine: ``python -m hybridperf.run.local_ranks RANKS MODULE``.

It does what torchrun does on one machine, without importing torch. All ranks are ended when one
fails; the last line of the output then names the rank that failed first, for `ending`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from hybridperf.run import child
from hybridperf.run.ending import first_failure

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main", "rank_environment"]

_GRACE_S: Final = 3.0  #: between SIGTERM and SIGKILL, for the ranks that did not fail
_POLL_S: Final = 0.05


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun would set for ``rank`` on one machine."""
    return {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(ranks)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def main() -> None:
    """Start the ranks, forward signals to them, and end them all when one fails."""
    ranks, module = int(sys.argv[1]), sys.argv[2]
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    with socket.socket() as reserved:
        # The port stays reserved until rank 0 listens on it: Linux lets it bind the port as well,
        # since both set SO_REUSEADDR, but assigns the port to nobody else.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        for rank in range(ranks):
            environment = os.environ | rank_environment(rank, ranks, port)
            command = [sys.executable, "-m", child.__name__, module]
            processes.append(subprocess.Popen(command, env=environment))
        failed = _await_failure(processes)
    if failed is not None:
        _end(processes)
        sys.exit(first_failure(failed, processes[failed].returncode))  # to standard error


def _await_failure(processes: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks; return as soon as one has failed: the first of them, in order of time."""
    ranks = {process.pid: rank for rank, process in enumerate(processes)}
    left = set(ranks)
    while left:
        # WNOWAIT leaves the status for Popen to read.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "only without WNOHANG"
        if ended.si_pid not in ranks:  # adopted: the child of a rank
            os.waitpid(ended.si_pid, 0)
            continue
        left.discard(ended.si_pid)
        if processes[ranks[ended.si_pid]].wait() != 0:
            return ranks[ended.si_pid]
    return None


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End all ranks that still run: with SIGTERM, after 3 s with SIGKILL."""
    for process in processes:
        process.terminate()  # does nothing if it has ended
    deadline_s = time.monotonic() + _GRACE_S
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    for process in processes:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
