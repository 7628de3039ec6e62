"""A result's folder: what is sealed in it, what was left behind, and who works in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, visible
from suite.logs.package import TASK_FILE, read_result
from suite.logs.sums import SUMS, format_sums
from suite.refusal import ExitCode, Refusal
from suite.runs.atomic import write_atomically
from suite.runs.ending import Outcome
from suite.runs.provenance import file_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from suite.logs.package import Package, SealedRun

__all__ = [
    "attempt_folder",
    "environment_refusal",
    "left_behind",
    "list_hashes",
    "locked",
    "only_holder",
    "output_file",
    "sealed_runs",
    "sweep",
]

_LOCK_POLL_S: Final = 0.2
_ATTEMPT: Final = re.compile(r"\.attempt_(\d{1,6})")


def attempt_folder(package: Package, number: int) -> Path:
    """Return the folder that an attempt works in until it is sealed."""
    return package.folder / f".attempt_{number}"


def output_file(package: Package, number: int) -> Path:
    """Return where what the ranks of an attempt printed is kept, if it did not complete."""
    return package.folder / f".output_{number}.txt"


def left_behind(package: Package) -> list[int]:
    """Return the numbers of attempts that were begun and not sealed."""
    names = (_ATTEMPT.fullmatch(path.name) for path in package.folder.iterdir())
    return sorted(int(name[1]) for name in names if name is not None)


def sealed_runs(package: Package) -> tuple[SealedRun, ...]:
    """Return the attempts sealed so far, by number.

    Raises:
        Refusal: exit status 3 where one lacks its manifest: it came from elsewhere, or was edited.
    """
    runs = read_result(package).runs
    for run in runs:
        if run.fact("outcome") not in list(Outcome):
            finding = Finding(
                "run.manifest",
                "a manifest beside the log that says how the run ended",
                "none",
                "put it back, or choose another folder with --out",
                path=run.log.path,
            )
            raise Refusal(finding, ExitCode.INVALID)
    return runs


def sweep(package: Package) -> None:
    """Remove files that were being written when an earlier harness was killed."""
    for pattern in (".result_*", f".{SUMS}.*", f".{TASK_FILE}.*"):
        for path in package.folder.glob(pattern):
            path.unlink()


def list_hashes(package: Package, coming: Mapping[str, str]) -> None:
    """Write SHA256SUMS of every log and manifest, those that are ``coming`` included.

    A user's own task, whose file stands beside them, is listed too.
    """
    files = [path for path in package.folder.glob("result_*") if path.is_file()]
    files += [package.task_file] if package.task_file.is_file() else []
    digests = {path.name: file_sha256(path) for path in files} | dict(coming)
    write_atomically(package.folder / SUMS, format_sums(digests).encode())


@contextlib.contextmanager
def locked(package: Package) -> Iterator[None]:
    """Work in the result's folder, made where there is none, and let nobody else.

    Raises:
        Refusal: exit status 4 where the folder cannot be written or somebody works in it.
    """
    try:
        package.folder.mkdir(parents=True, exist_ok=True)
        package.system_file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise environment_refusal(error, package.folder) from error
    with only_holder(package.folder / ".lock", "no other run in this folder"):
        yield


@contextlib.contextmanager
def only_holder(path: Path, expected: str, patience_s: float = 0.0) -> Iterator[None]:
    """Hold the lock in the file at ``path``, for which to wait ``patience_s``; others are refused.

    The kernel lets go of the lock when this process ends, however that ends.

    Raises:
        Refusal: exit status 4 where the file cannot be written, or where, other than ``expected``,
            somebody holds the lock.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise environment_refusal(error, path.parent) from error
    try:
        _lock(descriptor, patience_s)
    except OSError as error:
        owner = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        finding = Finding(
            "run.lock",
            expected,
            f"one by process {visible(owner)}",
            "wait until it ends, or choose another folder with --out",
            path=str(path.parent),
        )
        raise Refusal(finding, ExitCode.ENVIRONMENT) from error
    try:
        with contextlib.suppress(OSError):  # the owner is only a hint for others
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_LOCK_POLL_S)


def environment_refusal(error: OSError, path: Path) -> Refusal:
    """Return the refusal that a failed write is: what, where, and what to do about it."""
    remedies = {
        errno.ENOSPC: "free some space and give the same command again; what was measured is kept",
        errno.EDQUOT: "free some of your quota and give the same command again",
        errno.EROFS: "choose a writable folder with --out",
        errno.EACCES: "choose a folder that you may write with --out",
        errno.EPERM: "choose a folder that you may write with --out",
    }
    remedy = remedies.get(error.errno or 0, "choose another folder with --out")
    finding = Finding(
        "run.folder",
        "a folder that can be written",
        os.strerror(error.errno) if error.errno else str(error),
        remedy,
        path=str(path),
    )
    return Refusal(finding, ExitCode.ENVIRONMENT)
