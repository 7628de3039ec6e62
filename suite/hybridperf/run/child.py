"""Run a module in a process that ends with its parent: ``python -m hybridperf.run.child MODULE``.

The launcher of ranks and the predictor are started through it, so that no process of a run outlives
the harness, however early the harness ends and whatever the trainer does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import re
import resource
import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from hybridperf.run.processes import adopt_orphans, end_descendants
from hybridperf.run.provenance import package_folder
from hybridperf.system.landlock import Policy, enter_sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

__all__ = [
    "PARENT_VARIABLE",
    "SANDBOX_VARIABLE",
    "become_module",
    "die_with_parent",
    "end_with",
    "import_torch",
    "main",
    "run_module",
]

PARENT_VARIABLE: Final = "HYBRIDPERF_PARENT"  #: environment variable: expected parent process id
SANDBOX_VARIABLE: Final = "HYBRIDPERF_SANDBOX"  #: environment variable: file of a `Policy`
_PR_SET_PDEATHSIG: Final = 1
_OF_TRAINERS: Final = {"train", "predict"}
_IMPORTS_TORCH: Final = re.compile(rb"^\s*(?:import|from) torch\b", re.MULTILINE)


def die_with_parent(notice: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send ``notice`` to this process when its parent ends (Linux, ``prctl(2)``).

    If the parent ended before this call, its process id differs from `PARENT_VARIABLE` and the
    process kills itself. The variable is then set to this process's own id for its children. Call
    this once, at the start of a process.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, notice)
    if os.environ.get(PARENT_VARIABLE) not in {None, str(os.getppid())}:
        os.kill(os.getpid(), signal.SIGKILL)
    os.environ[PARENT_VARIABLE] = str(os.getpid())


def main() -> None:
    """Run the module named by the first argument, with the remaining arguments as its own.

    If the environment has a policy, the module runs in the sandbox, and this process stays outside
    to end everything that it leaves.
    """
    if policy := os.environ.pop(SANDBOX_VARIABLE, None):
        _stay_outside()
        enter_sandbox(Policy.read(Path(policy)))
    die_with_parent()
    package, _, name = sys.argv[1].rpartition(".")
    if name in _OF_TRAINERS:
        import_torch(package)
    run_module()


def _stay_outside() -> None:
    """Fork and return in the new process; the old process waits for it and ends like it."""
    adopt_orphans()
    signal.signal(signal.SIGHUP, _end_all)
    die_with_parent(notice=signal.SIGHUP)
    inside = os.fork()
    if inside == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the processes inside have got it too
    code = os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1])
    end_descendants()
    end_with(code)


def end_with(code: int) -> NoReturn:
    """End this process with the exit status ``code``, or by the signal ``-code``."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_all(number: int, _: FrameType | None) -> None:
    """End this process and all descendants, since the harness has ended."""
    end_descendants()
    os._exit(128 + number)


def import_torch(trainer: str) -> None:
    """Import torch if the code of the package ``trainer`` does.

    Garbage collection is off meanwhile, and ignores torch's objects later: it would find no garbage
    and take more than a third of the processor time of the import.

    Raises:
        ModuleNotFoundError: if there is no such package.
    """
    sources = package_folder(trainer).rglob("*.py")
    if any(_IMPORTS_TORCH.search(path.read_bytes()) for path in sources):
        gc.disable()
        importlib.import_module("torch")
        gc.enable()
    gc.freeze()


def become_module(module: str, environment: Mapping[str, str], *arguments: str) -> None:
    """Run ``module`` in this process, which was forked for it, with ``environment`` added."""
    die_with_parent()
    os.environ.update(environment)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed()  # as in a new process; `random` does so itself
    sys.argv[:] = [sys.argv[0], module, *arguments]
    run_module()


def run_module() -> None:
    """Run the module named by ``sys.argv[1]`` as ``__main__``; the rest are its arguments."""
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        gc.freeze()  # else the interpreter searches all objects for garbage before it ends


if __name__ == "__main__":
    main()
