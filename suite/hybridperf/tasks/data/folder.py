"""The folder with data that no Python package contains, which the user names."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.tasks.task import Data

__all__ = [
    "DATA_VARIABLE",
    "data_folder",
    "export_data_folder",
    "listing_sha256",
    "require_whole",
]

DATA_VARIABLE: Final = "HYBRIDPERF_DATA"  #: environment variable: path of the folder
_PARQUET: Final = b"PAR1"  #: magic number at both ends of a parquet file


def export_data_folder(folder: Path | None) -> None:
    """Export ``folder`` to this process and those that it starts, unless it is None."""
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
        raise refuse_data(data, expected, f"no folder {folder}", "name an existing one")
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
        found = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
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
