"""Commands forked from a process that has imported what they need: it takes most of their time.

``python -m tests.run.command_server DESCRIPTOR`` is that process. Over the socket DESCRIPTOR it
gets the arguments, environment and folder of each command with three descriptors: standard output,
standard error, and one to which it writes the process id and the exit status.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Command", "CommandServer", "ForkedCommand"]

_PACKET_BYTES: Final = 2**17
_ROOT: Final = Path(__file__).parents[2]


class Command(Protocol):
    """As much of `subprocess.Popen` as tests use."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """Return the exit status, negative for a signal, or None before it is known."""

    def poll(self) -> int | None:
        """Return the exit status, or None while the command runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless the command has ended."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what was printed to standard output and standard error."""


class CommandServer:
    """A process that forks commands; it ends with this one."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedCommand:
        """Start ``python -m tests.run.driver`` with ``arguments``."""
        if self._socket is None:
            self._launch()
        assert self._socket is not None
        printed = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 - the command's
        told, tell = os.pipe()
        packet = json.dumps([[*arguments], dict(environment), os.getcwd()]).encode()  # noqa: PTH109
        socket.send_fds(self._socket, [packet], [*(file.fileno() for file in printed), tell])
        os.close(tell)
        return ForkedCommand(told, *printed)

    def _launch(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=_ROOT,
                env=os.environ | {"PYTHONPATH": str(_ROOT)},
            )
        atexit.register(_end, self._socket, process)


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.wait()


class ForkedCommand:
    """A command that the server runs."""

    def __init__(self, told: int, output: IO[str], errors: IO[str]) -> None:
        self._told = open(told, encoding="ascii")  # noqa: SIM115 - closed by `poll`
        self._files = output, errors
        self._printed = ["", ""]
        self.pid = int(self._told.readline())
        self.returncode: int | None = None

    def poll(self, timeout_s: float | None = 0.0) -> int | None:
        """Return the exit status, or None if the command runs for longer than ``timeout_s``."""
        if self.returncode is None and select.select([self._told], [], [], timeout_s)[0]:
            self.returncode = int(self._told.readline())
            self._told.close()
        return self.returncode

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, *, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return what was printed to standard output and standard error.

        Raises:
            TimeoutExpired: if the command runs for longer than ``timeout``, in seconds.
        """
        if self.poll(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        for number, file in enumerate(self._files):
            if not file.closed:
                file.seek(0)
                self._printed[number] = file.read()
                file.close()
        return self._printed[0], self._printed[1]


def main() -> None:
    """Fork a command for each packet, and end when the socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for module in ("tests.run.driver", "numpy.random"):
        importlib.import_module(module)
    _read_installation()
    gc.enable()
    gc.freeze()  # so that commands share its pages
    running: dict[int, tuple[int, int]] = {}  # process id and pipe of the status, by pidfd
    while True:
        ready: list[int] = select.select([control.fileno(), *running], [], [])[0]
        for ended in running.keys() & ready:
            pid, tell = running.pop(ended)
            _, status = os.waitpid(pid, 0)
            os.close(ended)
            os.write(tell, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(tell)
        if control.fileno() not in ready:
            continue
        packet, descriptors, _, _ = socket.recv_fds(control, _PACKET_BYTES, 3)
        if not packet:
            return
        *printed, tell = descriptors
        pid = os.fork()
        if pid == 0:
            control.close()
            for descriptor in (tell, *(other for _, other in running.values())):
                os.close(descriptor)
            _become(*json.loads(packet), printed=printed)
            return
        for descriptor in printed:
            os.close(descriptor)
        os.write(tell, f"{pid}\n".encode())
        running[os.pidfd_open(pid)] = pid, tell


def _read_installation() -> None:
    """Do what every command would: import all commands, and hash what is installed."""
    import msgspec

    from hybridperf.cli.main import build_parser
    from hybridperf.run.provenance import import_facts, packages_sha256
    from hybridperf.system.software import probe_software

    build_parser()
    packages_sha256()
    probe_software()
    import_facts({msgspec.__name__: str(msgspec.__file__)}, ())


def _become(
    arguments: list[str], environment: dict[str, str], folder: str, *, printed: Sequence[int]
) -> None:
    """Carry a command out in this process, which was forked for it."""
    for stream, descriptor in zip((1, 2), printed, strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[0] = folder
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # as in a new process
    from tests.run.driver import main

    sys.argv[1:] = arguments
    main()


if __name__ == "__main__":
    main()
