"""The folder of a result: sealed and unsealed attempts, hashes, and the lock on the folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log.chain import SUMS, format_sums, parse_sums
from hybridperf.log.package import TASK_FILE, read_result
from hybridperf.run.ending import RunOutcome
from hybridperf.run.files import write_atomically
from hybridperf.run.provenance import file_sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hybridperf.log.package import Package, SealedRun

__all__ = [
    "add_hashes",
    "attempt_folder",
    "completed_runs",
    "environment_refusal",
    "locked",
    "output_file",
    "require_unchanged",
    "sealed_runs",
    "sweep",
    "unsealed_attempts",
]

_OF_RUNS: Final = ("result_*", "predictions_*")  #: patterns of the files that runs leave
_ATTEMPT: Final = re.compile(r"\.attempt_(\d{1,6})")


def attempt_folder(package: Package, number: int) -> Path:
    """Return the working folder of an attempt, which exists until the attempt is sealed."""
    return package.folder / f".attempt_{number}"


def output_file(package: Package, number: int) -> Path:
    """Return the file that keeps the ranks' output of an attempt that did not complete."""
    return package.folder / f".output_{number}.txt"


def unsealed_attempts(package: Package) -> list[int]:
    """Return the numbers of attempts that were started but not sealed, sorted."""
    names = (_ATTEMPT.fullmatch(path.name) for path in package.folder.iterdir())
    return sorted(int(name[1]) for name in names if name is not None)


def sealed_runs(package: Package) -> tuple[SealedRun, ...]:
    """Return the sealed attempts, sorted by number.

    Raises:
        UserError: exit status 3 if a log has no manifest that states the run's outcome.
    """
    runs = read_result(package).runs
    for run in runs:
        if run.fact("outcome") not in list(RunOutcome):
            raise UserError.of(
                "run.manifest",
                "a manifest beside the log with the outcome of the run",
                "none",
                "put it back, or choose another folder with --out",
                path=run.log.path,
                exit_code=ExitCode.INVALID,
            )
    return runs


def completed_runs(runs: Iterable[SealedRun]) -> list[SealedRun]:
    """Return the sealed ``runs`` that completed, whether they reached or missed the target."""
    return [run for run in runs if RunOutcome(str(run.fact("outcome"))).completed]


def sweep(package: Package) -> None:
    """Remove temporary files of an earlier harness that was killed while writing."""
    for pattern in (*_OF_RUNS, f"{SUMS}.*", f"{TASK_FILE}.*"):
        for path in package.folder.glob(f".{pattern}"):
            path.unlink()


def require_unchanged(package: Package) -> dict[str, str]:
    """Verify all sealed files against SHA256SUMS; return the digests by file name.

    Files of an attempt without a log are not compared: it is not sealed yet, and they will be
    written again.

    Raises:
        UserError: exit status 3 if a file was changed, is listed but missing, or is not listed.
    """
    runs = {path.stem for path in package.folder.glob("result_*.txt")}
    kept = [path for pattern in _OF_RUNS for path in package.folder.glob(pattern)]
    present = {
        path.name: path
        for path in [*kept, package.task_file]
        if path.is_file() and (_run_of(path.name) in runs or path == package.task_file)
    }
    sums = package.folder / SUMS
    try:
        listed = parse_sums(sums.read_text(encoding="utf-8")) if sums.exists() else {}
    except ValueError as error:
        raise _changed(sums, f"SHA-256 of every file, found {error}") from error
    for name, digest in listed.items():
        if _run_of(name) in runs or name == TASK_FILE:
            if name not in present:
                raise _changed(package.folder / name, "a file that SHA256SUMS lists, found none")
            if file_sha256(present[name]) != digest:
                raise _changed(present[name], "its content as it was sealed, found another")
    for name, path in present.items():
        if name not in listed and _run_of(name) in runs:
            raise _changed(path, "a line for it in SHA256SUMS, found none")
    return listed


def _run_of(name: str) -> str:
    """Return the stem of the log of the run to which the sealed file ``name`` belongs."""
    return Path(name).stem.replace("predictions_", "result_", 1)


def add_hashes(package: Package, digests: Mapping[str, str], sealed: dict[str, str]) -> None:
    """Add the SHA-256 ``digests`` by file name to SHA256SUMS; existing lines do not change.

    ``sealed`` has the lines that this command has read or written, and gets the new lines: a
    trainer without a sandbox could change sealed files together with their hashes.

    Raises:
        UserError: as `require_unchanged`, and if a line of ``sealed`` has changed.
    """
    listed = require_unchanged(package)
    for name, digest in sealed.items():
        if listed.get(name) != digest:
            raise _changed(package.folder / name, "the hash that it was sealed with, found another")
    if package.task_file.is_file():  # copy of a user's own task
        listed.setdefault(package.task_file.name, file_sha256(package.task_file))
    write_atomically(package.folder / SUMS, format_sums(listed | dict(digests)).encode())
    sealed.update(digests)


def _changed(path: Path, what: str) -> UserError:
    expected, _, found = what.partition(", found ")
    remedy = "restore the sealed files, or choose another folder with --out"
    return UserError.of(
        "run.sums", expected, found, remedy, path=str(path), exit_code=ExitCode.INVALID
    )


@contextlib.contextmanager
def locked(package: Package) -> Iterator[None]:
    """Hold an exclusive lock on the result's folder, which is created if missing.

    The kernel releases it when this process ends, however it ends.

    Raises:
        UserError: exit status 4 if the folder is not writable or another process holds the lock.
    """
    try:
        package.folder.mkdir(parents=True, exist_ok=True)
        package.system_file.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(package.folder / ".lock", flags, 0o644)
    except OSError as error:
        raise environment_refusal(error, package.folder) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise UserError.of(
            "run.lock",
            "no other run in this folder",
            f"one by process {visible(owner)}",
            "wait until it ends, or choose another folder with --out",
            path=str(package.folder),
            exit_code=ExitCode.ENVIRONMENT,
        ) from error
    try:
        with contextlib.suppress(OSError):  # the process id is only for the error message
            os.truncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def environment_refusal(error: OSError, path: Path) -> UserError:
    """Return the error, with a remedy, for a write to ``path`` that failed with ``error``."""
    remedies = {
        errno.ENOSPC: "free some space and give the same command again; completed runs are kept",
        errno.EDQUOT: "free some of your quota and give the same command again",
        errno.EROFS: "choose a writable folder with --out",
        errno.EACCES: "choose a folder that you may write with --out",
        errno.EPERM: "choose a folder that you may write with --out",
    }
    return UserError.of(
        "run.folder",
        "a folder that can be written",
        os.strerror(error.errno) if error.errno else str(error),
        remedies.get(error.errno or 0, "choose another folder with --out"),
        path=str(path),
        exit_code=ExitCode.ENVIRONMENT,
    )
