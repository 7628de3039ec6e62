"""The predictor server: one process per run set that has imported torch and forks predictors.

Importing torch takes most of the processor time of a rescoring. The server imports nothing of the
trainer, so every predictor starts as a new process would. Harness and server exchange packets over
a socket: a JSON object starts a predictor, an empty object ends it, and a number is the exit status
of one that has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hybridperf.run.child import become_module, die_with_parent, import_torch
from hybridperf.run.descendants import adopt_orphans, end_descendants
from hybridperf.run.launcher import bytecode_folder, predictor_environment, python_command
from hybridperf.run.processes import end_tree
from hybridperf.run.sandbox import policy_of
from hybridperf.run.scratch import Scratch
from hybridperf.run.spec import RUN_VARIABLE
from hybridperf.system.landlock import Policy, enter_sandbox

if TYPE_CHECKING:
    from hybridperf.run.spec import RunSpec

__all__ = ["PredictorServer", "Scoring", "main"]

_ENDING_S: Final = 10.0  #: time to end a predictor and all that it started
_PACKET_BYTES: Final = 2**16


class PredictorServer:
    """The harness's handle on the server, which is started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._temporary: Scratch | None = None
        self._spec: RunSpec | None = None  # of the run whose scoring started the server

    def start(self, spec: RunSpec) -> Scoring:
        """Start the predictor of the run ``spec``, which loads the run's final weights."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._launch(spec)
        assert self._socket is not None
        assert self._process is not None
        order = {"path": str(spec.path), "output": str(spec.output), "trainer": spec.predictor}
        if spec.sandboxed:
            readable = (spec.path, spec.weights, bytecode_folder())
            policy = policy_of(spec, writable=(spec.scoring, self._scratch), readable=readable)
            order["policy"] = str(policy.write(self._scratch.parent))
        with contextlib.suppress(OSError):  # it has ended, which `Scoring.poll` notices
            self._socket.send(json.dumps(order).encode())
        return Scoring(self, self._process, self._socket)

    def _launch(self, spec: RunSpec) -> None:
        self._spec = spec
        self._temporary = Scratch()
        self._scratch.mkdir()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, spec.output.open("ab") as output:
            self._process = subprocess.Popen(
                python_command(spec, __name__, spec.predictor),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=predictor_environment(spec, self._scratch),
                cwd=self._scratch if spec.sandboxed else None,
                start_new_session=True,  # Ctrl-C reaches only the harness
            )

    @property
    def _scratch(self) -> Path:
        """Return the folder for temporary files and caches of predictors."""
        assert self._temporary is not None, "made when the server is launched"
        return self._temporary.path / "scratch"

    def close(self) -> None:
        """End the server and all that it started; a later `start` launches another one."""
        if self._socket is None or self._process is None or self._spec is None:
            return
        self._socket.close()  # which tells the server to end
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        if self._process.returncode != 0:  # killed, or did not end in time
            end_tree(self._process, self._spec.path)
        if self._temporary is not None:
            self._temporary.close()
        self._process = self._socket = self._temporary = None


class Scoring:
    """A predictor run by the server, with as much of `subprocess.Popen` as supervision needs."""

    def __init__(
        self, owner: PredictorServer, process: subprocess.Popen[bytes], connection: socket.socket
    ) -> None:
        self._owner, self._process, self._socket = owner, process, connection
        self.server = process.pid  #: process id of the predictor's parent
        self.returncode: int | None = None  #: negative signal number if it was killed

    def poll(self, timeout_s: float = 0.0) -> int | None:
        """Return the predictor's exit status, or None if it has not ended within ``timeout_s``."""
        if self.returncode is None and select.select([self._socket], [], [], timeout_s)[0]:
            answer = b""
            with contextlib.suppress(OSError):
                answer = self._socket.recv(_PACKET_BYTES)
            # Without an answer, the server itself has ended.
            self.returncode = int(answer) if answer else self._process.wait() or 1
        return self.returncode

    def end(self) -> None:
        """End the predictor and everything that it started, if it has not ended."""
        if self.returncode is None:
            with contextlib.suppress(OSError):
                self._socket.send(b"{}")
            if self.poll(_ENDING_S) is None:
                self._process.kill()
                self._owner.close()


def main() -> None:
    """Serve the harness at the socket that is this process's standard input, until it closes."""
    # The socket closes when the harness ends; the server then ends what it started before itself.
    die_with_parent(notice=signal.SIGCONT)
    adopt_orphans()
    import_torch(sys.argv[1])
    # Of OpenBLAS's threads, which it stops before a fork.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with socket.socket(fileno=os.dup(0)) as harness:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        while packet := harness.recv(_PACKET_BYTES):
            order = json.loads(packet)
            if not order:
                continue  # the predictor that it asks to end has ended by itself
            predictor = os.fork()
            if predictor == 0:
                harness.close()
                _predict(order)
                return
            status = _await_end(predictor, harness)
            end_descendants()
            with contextlib.suppress(OSError):  # the harness has ended, as the next packet says
                harness.send(b"%d" % status)


def _predict(order: dict[str, Any]) -> None:
    """Run the predictor in this process, which was forked for it."""
    os.setsid()
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    if policy := order.get("policy"):
        enter_sandbox(Policy.read(Path(policy)))
    become_module(f"{order['trainer']}.predict", {RUN_VARIABLE: order["path"]})


def _await_end(predictor: int, harness: socket.socket) -> int:
    """Wait for the predictor and return its exit status; kill it if the harness sends a packet."""
    descriptor = os.pidfd_open(predictor)
    ready, _, _ = select.select([descriptor, harness.fileno()], [], [])
    if descriptor not in ready:
        harness.recv(_PACKET_BYTES)
        os.kill(predictor, signal.SIGKILL)
    os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(predictor, 0)[1])


if __name__ == "__main__":
    main()
