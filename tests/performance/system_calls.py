"""Time system calls: ``-m tests.performance.system_calls FOLDER [POLICY]``, where in the sandbox.

It prints the microseconds of each, the median of some batches, as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.system.landlock import Policy, enter_sandbox

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES: Final = 15
MESSAGE: Final = bytes(4096)


def microseconds(call: Callable[[], object], repetitions: int) -> float:
    """Return how long ``call`` takes: the median of batches of so many ``repetitions``."""
    taken = []
    for _ in range(BATCHES):
        start_s = time.perf_counter()
        for _ in range(repetitions):
            call()
        taken.append((time.perf_counter() - start_s) / repetitions)
    return 1e6 * statistics.median(taken)


def echo(connection: socket.socket) -> None:
    """Send back whatever comes."""
    while message := connection.recv(len(MESSAGE), socket.MSG_WAITALL):
        connection.sendall(message)


def round_trip(connection: socket.socket) -> None:
    """Send a message to an `echo`, and wait for it."""
    connection.sendall(MESSAGE)
    connection.recv(len(MESSAGE), socket.MSG_WAITALL)


def main() -> None:
    """Time them."""
    folder = Path(sys.argv[1])
    if sys.argv[2:]:
        enter_sandbox(Policy.read(Path(sys.argv[2])))
    descriptor = os.open(folder / "pulse", os.O_RDWR | os.O_CREAT)
    near, far = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        to_peer = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    for connection in (to_peer, peer):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for connection in (far, peer):
        threading.Thread(target=echo, args=(connection,), daemon=True).start()
    library = socket.__file__
    found = {
        "write 8 bytes to an open file": microseconds(
            lambda: os.pwrite(descriptor, b"12345678", 0), 10_000
        ),
        "read 8 bytes of an open file": microseconds(lambda: os.pread(descriptor, 8, 0), 10_000),
        "4 KiB to a thread and back by a Unix socket": microseconds(lambda: round_trip(near), 500),
        "4 KiB to a thread and back by TCP": microseconds(lambda: round_trip(to_peer), 500),
        "open and close a module": microseconds(
            lambda: os.close(os.open(library, os.O_RDONLY)), 2000
        ),
    }
    print(json.dumps(found))  # noqa: T201 - for the process that started this one


if __name__ == "__main__":
    main()
