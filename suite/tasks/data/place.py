"""Where data that does not come with a package lies: a folder that the user names."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suite.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from collections.abc import Iterable

    from suite.tasks.task import Data

__all__ = ["DATA_VARIABLE", "data_folder", "listing_sha256", "require_whole"]

DATA_VARIABLE: Final = "HYBRIDPERF_DATA"  #: environment variable that names the folder
_PARQUET: Final = b"PAR1"  #: how a parquet file begins and ends


def data_folder(data: Data) -> Path:
    """Return the folder that holds the samples of ``data``.

    Raises:
        Refusal: exit status 4 where none is named, or where it is not there.
    """
    expected = f"a folder with {data.source}"
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        remedy = f"name it with --data-dir or in the variable {DATA_VARIABLE}"
        raise refuse_data(data, expected, "none", remedy)
    folder = Path(named).absolute()
    if not folder.is_dir():
        raise refuse_data(data, expected, f"no folder {folder}", "name another")
    return folder


def listing_sha256(folder: Path, files: Iterable[Path]) -> str:
    """Return the SHA-256 of the names and sizes of ``files``: contents would take too long."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}\n".encode())
    return digest.hexdigest()


def require_whole(data: Data, path: Path, content: str) -> None:
    """Make sure that the file at ``path``, which has ``content`` such as ``text``, is not cut off.

    Raises:
        Refusal: exit status 4 where it is empty, or does not begin and end as a parquet file does.
    """
    if path.stat().st_size == 0:
        raise refuse_data(data, f"{content} in {path}", "an empty file", "fetch it again")
    if path.suffix == ".parquet" and not _is_whole_parquet(path):
        expected = f"{path} to begin and end as a parquet file does"
        raise refuse_data(data, expected, "a file cut off", "fetch it again")


def _is_whole_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.read(4)
        file.seek(max(-4, -path.stat().st_size), 2)
        return first == file.read(4) == _PARQUET
