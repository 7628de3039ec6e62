"""What a trainer may try against the harness, its files and its data, each as a function."""

from __future__ import annotations

import ctypes
import gzip
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ATTEMPTS", "HIDDEN", "LEFT", "WHISPERS", "try_all"]

LEFT: Final = Path("/dev/shm/hybridperf_cheat")  #: for the next run


def _harness() -> int:
    """Return the process id of the harness, which every process can find."""
    return int(os.environ["HYBRIDPERF_NODE"].split()[1])


def _attempt() -> Path:
    return Path(os.environ["HYBRIDPERF_RUN"]).parent


def _result() -> Path:
    return _attempt().parent


def _digits() -> Path:
    import sklearn

    return Path(sklearn.__path__[0]) / "datasets/data/digits.csv.gz"


def _load_digits() -> None:
    from sklearn.datasets import load_digits

    load_digits()


def _trace() -> None:
    attach = 16
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(attach, _harness(), 0, 0):
        raise OSError(ctypes.get_errno(), "ptrace")


def _read_memory() -> None:
    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    into = ctypes.create_string_buffer(8)
    own = Vector(ctypes.addressof(into), 8)
    line = Path(f"/proc/{_harness()}/maps").read_text()
    other = Vector(int(line.partition("-")[0], 16), 8)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.process_vm_readv(_harness(), ctypes.byref(own), 1, ctypes.byref(other), 1, 0) < 0:
        raise OSError(ctypes.get_errno(), "process_vm_readv")


def _connect() -> None:
    port = int(os.environ["CHEAT_PORT"])
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def _send_datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"labels", ("127.0.0.1", int(os.environ["CHEAT_PORT"])))


def _connect_abstract() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("\0" + os.environ["CHEAT_NAME"])


def _ask_daemon() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["CHEAT_SOCKET"])
        assert connection.recv(6) == b"labels"


def _change_times() -> None:
    status = Path(__file__).stat()
    os.utime(__file__, ns=(status.st_atime_ns, status.st_mtime_ns))


def _compiled() -> Path:
    tag = sys.implementation.cache_tag
    return Path(__file__).parent / f"__pycache__/attempts.{tag}.pyc"


def _add_module() -> None:
    (Path(sys.prefix) / "lib/sitecustomize.py").write_text("")


def _follow_link() -> None:
    link = _attempt() / f"work/link_{os.environ.get('RANK', '0')}"
    link.symlink_to(_digits())
    link.read_bytes()


ATTEMPTS: Final[Mapping[str, Callable[[], object]]] = {
    "reads the data file": lambda: gzip.decompress(_digits().read_bytes()),
    "has the library read the data": _load_digits,
    "reads the data through another process's root": lambda: Path(
        f"/proc/{os.getppid()}/root{_digits()}"
    ).read_bytes(),
    "links to the data": lambda: os.link(_digits(), _attempt() / "work/digits"),
    "follows a symbolic link to the data": _follow_link,
    "has a child read the data": lambda: subprocess.run(
        ["/bin/cat", _digits()], check=True, capture_output=True
    ),
    "reads the seed": lambda: (_attempt() / "run.json").read_bytes(),
    "rewrites the seed and the plan": lambda: (_attempt() / "run.json").write_text("{}"),
    "writes into the log": lambda: os.open(_attempt() / "log.txt", os.O_WRONLY),
    "replaces the log": lambda: (_attempt() / "log.txt").unlink(),
    "writes an ending": lambda: (_attempt() / "ending.json").write_text("{}"),
    "writes a rescoring": lambda: (_attempt() / "rescoring.json").write_text("{}"),
    "writes predictions": lambda: (_attempt() / "predictions.npy").write_bytes(b""),
    "prepares the scoring": lambda: (_attempt() / "scoring").mkdir(),
    "renames its folder": lambda: (_attempt() / "work").rename(_attempt() / "other"),
    "edits a sealed log": lambda: (_result() / "result_0.txt").write_text(""),
    "edits a sealed manifest": lambda: (_result() / "result_0.json").write_text("{}"),
    "removes a sealed run": lambda: (_result() / "result_0.txt").unlink(),
    "edits the hashes": lambda: (_result() / "SHA256SUMS").write_text(""),
    "adds a result": lambda: (_result() / "result_7.txt").write_text(""),
    "adds a system": lambda: (_result().parents[2] / "systems/mine.json").write_text("{}"),
    "stops the harness": lambda: os.kill(_harness(), signal.SIGSTOP),
    "ends the harness": lambda: os.kill(_harness(), signal.SIGKILL),
    "interrupts the harness": lambda: os.kill(_harness(), signal.SIGINT),
    "stops the process that waits for it": lambda: os.kill(os.getppid(), signal.SIGSTOP),
    "traces the harness": _trace,
    "reads the harness's memory": _read_memory,
    "writes the harness's memory": lambda: os.open(f"/proc/{_harness()}/mem", os.O_RDWR),
    "reads the harness's environment": lambda: Path(f"/proc/{_harness()}/environ").read_bytes(),
    "takes the harness's files": lambda: Path(f"/proc/{_harness()}/fd/0").read_bytes(),
    "reads what Python compiled of it": lambda: _compiled().read_bytes(),
    "prepares code for the next run": lambda: Path(str(sys.pycache_prefix), "mine").mkdir(),
    "changes its own code": lambda: os.open(__file__, os.O_WRONLY),
    "changes the harness's code": lambda: Path(sys.modules["hybridperf"].__path__[0], "x").touch(),
    "adds a module that starts with every Python": _add_module,
    "leaves something for the next run": lambda: Path("/var/tmp/hybridperf_cheat").touch(),
    "connects to another process": _connect,
    "listens for another process": lambda: socket.create_server(("127.0.0.1", 0)),
    "connects to an abstract socket": _connect_abstract,
    "limits the harness": lambda: resource.prlimit(_harness(), resource.RLIMIT_NOFILE),
    "slows the harness": lambda: os.setpriority(os.PRIO_PROCESS, _harness(), 1),
    "slows all of the user's processes": lambda: os.setpriority(os.PRIO_USER, 0, 1),
    "has the harness run last": lambda: os.sched_setscheduler(
        _harness(), os.SCHED_IDLE, os.sched_param(0)
    ),
}

#: what fails where the run has files of its own
HIDDEN: Final[Mapping[str, Callable[[], object]]] = {
    "asks a daemon at a socket's path": _ask_daemon,
    "changes the mode of its code": lambda: Path(__file__).chmod(Path(__file__).stat().st_mode),
    "changes the times of its code": _change_times,
    "adds an attribute to its code": lambda: os.setxattr(__file__, "user.hybridperf", b""),
    "gives its code away": lambda: os.chown(__file__, os.geteuid(), -1),
    "changes the mode of a sealed log": lambda: (_result() / "result_0.txt").chmod(0o644),
    "looks what there is": lambda: (_result() / "result_0.txt").stat(),
}

#: what may succeed, and reaches nobody
WHISPERS: Final[Mapping[str, Callable[[], object]]] = {
    "leaves something in shared memory": lambda: LEFT.write_text("labels"),
    "sends a datagram": _send_datagram,
}


def try_all() -> dict[str, str]:
    """Make every attempt; return the name of the exception that stopped each, or ``""``."""
    found = {}
    for name, attempt in {**ATTEMPTS, **HIDDEN, **WHISPERS}.items():
        try:
            attempt()
        except Exception as error:
            found[name] = type(error).__name__
        else:
            found[name] = ""
    return found
