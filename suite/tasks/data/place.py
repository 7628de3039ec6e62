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

__all__ = ["DATA_VARIABLE", "data_folder", "is_whole_parquet", "listing_sha256"]

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


def is_whole_parquet(path: Path) -> bool:
    """Tell whether the file at ``path`` begins and ends as one of parquet does."""
    with path.open("rb") as file:
        first = file.read(4)
        file.seek(max(-4, -path.stat().st_size), 2)
        return first == file.read(4) == _PARQUET
