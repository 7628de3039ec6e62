"""Data sources: samples and splits, the folder that the user names, and checksums."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from hybridperf.errors import ExitCode, UserError
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.tasks.task import Data

__all__ = [
    "DATA_VARIABLE",
    "RECORD",
    "DataSource",
    "PrepareProgress",
    "Samples",
    "Splits",
    "check_sha256",
    "contents_sha256",
    "data_folder",
    "export_data_folder",
    "listing_sha256",
    "refuse_data",
    "require_counts",
    "require_whole",
]


class PrepareProgress(Protocol):
    """Receives the progress of the preparation of a data set."""

    def __call__(self, done: float, total: int, what: str) -> None:
        """Handle the progress, ``done`` of ``total``; ``what`` describes it: ``120 images``."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs [sample, ...] and labels, with one row per sample."""

    inputs: Any  #: indexed by a slice or indices [batch]: images [sample, height, width], or rows
    labels: NDArray[np.int64]  #: classes: [sample], or [sample, label] for several per sample

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, slots=True)
class Splits:
    """The two disjoint parts of a data set."""

    train: Samples
    evaluation: Samples


class DataSource(Protocol):
    """A source of samples."""

    in_memory: bool = False  #: whether inputs are arrays, which `read` reads as a whole

    def files(self, data: Data) -> list[Path]:
        """Return the files that contain the samples.

        Raises:
            UserError: exit status 4 if they are missing.
        """

    def check(self, data: Data) -> str:
        """Verify that the samples exist and match the expected checksum; return their SHA-256.

        Raises:
            UserError: exit status 4, naming the file.
        """

    def import_packages(self, data: Data) -> None:  # noqa: ARG002 - most sources need only this
        """Import the packages of `read` before the clock runs."""
        importlib.import_module("numpy")

    def read(self, data: Data) -> Splits:
        """Read and split the samples.

        Raises:
            UserError: as `check`.
        """

    def verify(self, data: Data, progress: PrepareProgress) -> bool:  # noqa: ARG002 - none by default
        """Verify once that every sample can be decoded; return False if nothing remained to do.

        By default there is nothing to decode.

        Raises:
            UserError: exit status 4, naming the first sample that is damaged.
        """
        return False

    def prepare(self, data: Data, progress: PrepareProgress) -> bool:
        """Prepare the data once for all runs; return False if nothing remained to be done.

        By default: `check` and `verify`.

        Raises:
            UserError: as `check` and `verify`.
        """
        self.check(data)
        return self.verify(data, progress)


def check_sha256(data: Data, content: bytes) -> str:
    """Compare the SHA-256 of ``content`` with ``data.sha256``; return it.

    Raises:
        UserError: exit status 4 if they differ and ``data`` does not allow other editions.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest != data.sha256 and data.editions is None:
        raise refuse_data(data, f"data with SHA-256 {data.sha256[:12]}...", f"{digest[:12]}...")
    return digest


def require_counts(data: Data, splits: Splits) -> Splits:
    """Compare the sizes of ``splits`` with the sizes in ``data``; return ``splits``.

    Raises:
        UserError: exit status 4 if they differ.
    """
    counts = (len(splits.train), len(splits.evaluation))
    if counts != (data.train_samples, data.eval_samples):
        expected = f"{data.train_samples} training and {data.eval_samples} evaluation samples"
        raise refuse_data(data, expected, f"{counts[0]} and {counts[1]}")
    return splits


def refuse_data(data: Data, expected: str, found: str, remedy: str = "") -> UserError:
    """Return the error, of exit status 4, for samples that do not match ``data``."""
    remedy = remedy or f"reinstall {data.source.partition(',')[0]}"
    return UserError.of(
        "data.file",
        expected,
        found,
        remedy,
        path=f"data set {data.name}",
        exit_code=ExitCode.ENVIRONMENT,
    )


DATA_VARIABLE: Final = "HYBRIDPERF_DATA"  #: environment variable with the path of the data folder
_PARQUET: Final = b"PAR1"  #: magic number at both ends of a parquet file


def export_data_folder(folder: Path | None) -> None:
    """Export ``folder`` to this process and its children, unless it is None."""
    if folder is not None:
        os.environ[DATA_VARIABLE] = str(folder.absolute())


def data_folder(data: Data) -> Path:
    """Return the folder named by the environment variable `DATA_VARIABLE`, as an absolute path.

    Raises:
        UserError: exit status 4 if the variable is not set or the folder does not exist.
    """
    expected = f"a folder with {data.source}"
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        remedy = f"name it with --data-dir or in the variable {DATA_VARIABLE}"
        raise refuse_data(data, expected, "none", remedy)
    folder = Path(named).absolute()
    if not folder.is_dir():
        raise refuse_data(data, expected, f"no folder {folder}", "name an existing folder")
    return folder


def listing_sha256(folder: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 of names and sizes of ``files``; hashing contents would take too long."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def require_whole(data: Data, path: Path, content: str) -> None:
    """Check that ``path`` is a regular file that is neither empty nor a truncated parquet file.

    ``content``, such as ``text``, describes the expected content in the error message.

    Raises:
        UserError: exit status 4 if the check fails.
    """
    expected, remedy = f"{content} in {path}", "fetch it again"
    try:
        status = path.stat()
    except FileNotFoundError:
        raise refuse_data(data, expected, "a broken link", remedy) from None
    if not stat.S_ISREG(status.st_mode):
        found = "a folder" if stat.S_ISDIR(status.st_mode) else "a special file"
        raise refuse_data(data, expected, found, "remove or rename it")
    if status.st_size == 0:
        raise refuse_data(data, expected, "an empty file", remedy)
    if path.suffix == ".parquet" and not _is_whole_parquet(path):
        expected = f"{path} to be a whole parquet file"
        raise refuse_data(data, expected, "a truncated file", "fetch it again")


def _is_whole_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.read(4)
        file.seek(max(-4, -path.stat().st_size), 2)
        return first == file.read(4) == _PARQUET


RECORD: Final = (
    "hybridperf_contents.json"  #: record of the hash, beside files that take long to hash
)
_LONG_BYTES: Final = 2**26
_HASHED: Final[dict[str, str]] = {}  #: hashes known to this process, by identity of the files


def contents_sha256(files: Sequence[Path]) -> str:
    """Return the SHA-256 of names and contents of ``files``.

    Files whose names, sizes and times are known from an earlier call are not read again.
    """
    folder = Path(os.path.commonpath([path.parent for path in files]))
    digest, size = hashlib.sha256(), 0
    for path in files:
        status, name = path.stat(), path.relative_to(folder).as_posix()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        size += status.st_size
    identity = digest.hexdigest()
    if identity not in _HASHED:
        record = folder / RECORD if size >= _LONG_BYTES else None
        _HASHED[identity] = _read_record(record, identity) or _hash_files(folder, files)
        if record is not None:
            with contextlib.suppress(OSError):  # not writable: the next command hashes again
                facts = {"identity": identity, "sha256": _HASHED[identity]}
                write_atomically(record, canonical_json(facts))
    return _HASHED[identity]


def _read_record(record: Path | None, identity: str) -> str | None:
    try:
        facts = {} if record is None else read_object(record)
    except (OSError, ValueError):
        return None
    sha256 = facts.get("sha256")
    return sha256 if facts.get("identity") == identity and isinstance(sha256, str) else None


def _hash_files(folder: Path, files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()
