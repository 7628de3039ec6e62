"""Run the ranks of a node: ``-m hybridperf.run.local_ranks RANKS NODE NODES ADDRESS TRAINER``.

It does what torchrun does, but imports torch once: the ranks are forks of a process that has
imported torch and nothing of the trainer, so no accelerator is initialized before the fork. Each
runs the trainer's ``train``, or the module that follows, with its arguments. Rank 0 listens at
``ADDRESS``, HOST:PORT on node 0; empty: a free port of this machine. All ranks are ended when one
fails; the last line of the output then names the rank that failed first, and this process ends by
the signal that ended that rank, if one did.
"""

from __future__ import annotations

import contextlib
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


def rank_environment(
    place: int, ranks: int, address: str, node: int = 0, nodes: int = 1
) -> dict[str, str]:
    """Return the variables that torchrun would set for rank number ``place`` of ``ranks`` here.

    Rank 0 listens at ``address``, HOST:PORT; an IPv6 host is without brackets.
    """
    host, _, port = address.rpartition(":")
    return {
        **dict.fromkeys(("RANK", "ROLE_RANK"), str(node * ranks + place)),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(nodes * ranks)),
        "LOCAL_RANK": str(place),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default",
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
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
    ranks, node, nodes = map(int, sys.argv[1:4])
    address, trainer = sys.argv[4:6]
    module, *arguments = sys.argv[6:] or [f"{trainer}.train"]
    import_torch(trainer)  # frozen, so that collections in the ranks leave its pages shared
    # Of OpenBLAS's threads, which it stops before a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with contextlib.ExitStack() as held:
        if not address:
            reserved = held.enter_context(reserve_port("127.0.0.1"))
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
        left: dict[int, int] = {}  # rank by process id, of the ranks that have not ended
        for place in range(ranks):
            if (process := os.fork()) == 0:
                held.close()
                own = rank_environment(place, ranks, address, node, nodes)
                become_module(module, own, *arguments)
                return
            left[process] = node * ranks + place
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
