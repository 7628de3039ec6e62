"""Run several ranks on this machine: ``-m hybridperf.run.local_ranks RANKS TRAINER [MODULE ...]``.

It does what torchrun does on one machine, but imports torch once: the ranks are forks of a process
that has imported torch and nothing of the trainer, so no accelerator is initialized before the
fork. Each runs the trainer's ``train``, or ``MODULE`` with arguments. All ranks are ended when one
fails; the last line of the output then names the rank that failed first, and this process ends by
the signal that ended that rank, if one did.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import warnings
from typing import TYPE_CHECKING, Final

from hybridperf.run.child import become_module, end_with, import_torch
from hybridperf.run.ending import first_failure

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["main", "rank_environment", "reserve_port"]

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


def reserve_port(host: str) -> socket.socket:
    """Return a socket with a port of ``host`` at which rank 0 can listen until it is closed.

    Linux lets rank 0 bind the port as well, since both sockets set SO_REUSEADDR and this one does
    not listen, but assigns it to nobody else.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((host, 0))
    return reserved


def main() -> None:
    """Start the ranks, forward signals to them, and end them all when one fails."""
    ranks, trainer = int(sys.argv[1]), sys.argv[2]
    module, *arguments = sys.argv[3:] or [f"{trainer}.train"]
    import_torch(trainer)  # frozen, so that collections in the ranks leave its pages shared
    # Of OpenBLAS's threads, which it stops before a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with reserve_port("127.0.0.1") as reserved:
        port: int = reserved.getsockname()[1]
        left: dict[int, int] = {}  # rank by process id, of the ranks that have not ended
        for rank in range(ranks):
            if (process := os.fork()) == 0:
                reserved.close()
                become_module(module, rank_environment(rank, ranks, port), *arguments)
                return
            left[process] = rank
        failure = _await_failure(left)
    if failure is not None:
        _end(left)
        print(first_failure(*failure), file=sys.stderr, flush=True)  # noqa: T201 - the output
        end_with(failure[1])


def _await_failure(left: dict[int, int]) -> tuple[int, int] | None:
    """Wait for all ranks; return rank and exit status of the first that fails, when it fails."""

    def forward(number: int, _: FrameType | None) -> None:
        for process in left:
            os.kill(process, number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    while left:
        # WNOWAIT: until the next statement, no other process can get the same id.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "only with WNOHANG"
        rank = left.pop(ended.si_pid, None)
        _, status = os.waitpid(ended.si_pid, 0)
        if rank is not None and (code := os.waitstatus_to_exitcode(status)) != 0:
            return rank, code
    return None


def _end(left: dict[int, int]) -> None:
    """End all ranks that still run: with SIGTERM, after 3 s with SIGKILL."""
    for process in left:
        os.kill(process, signal.SIGTERM)
    deadline_s = time.monotonic() + _GRACE_S
    while left and time.monotonic() < deadline_s:
        for process in list(left):
            if os.waitpid(process, os.WNOHANG)[0]:
                del left[process]
        time.sleep(_POLL_S)
    for process in left:
        os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main()
