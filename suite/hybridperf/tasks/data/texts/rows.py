"""Rows of text, read by Hugging Face ``datasets`` from a parquet file or a shard of a saved set."""

from __future__ import annotations

import glob
import tempfile
from typing import TYPE_CHECKING, Any, Final

from hybridperf.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.tasks.task import Data

__all__ = ["read_rows"]

_COLUMN: Final = "text"
_AT_ONCE: Final = 1000  #: rows held in memory


def read_rows(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    """Yield the text of each row with the fraction of the rows read so far.

    Raises:
        UserError: exit status 4 if the file is damaged or has no column of text.
    """
    import datasets

    number = 0
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported below
    try:
        with tempfile.TemporaryDirectory() as cache:
            table, rows = _open(path, cache)
            for part in table.with_format("arrow").iter(_AT_ONCE):
                texts = part.column(_COLUMN).cast("large_string")
                texts.validate(full=True)  # offsets of a damaged file may lie outside its buffers
                for text in texts.to_pylist():
                    number += 1
                    yield text or "", number / rows
    except Exception as error:  # datasets passes on the exceptions of many readers
        expected = f"rows with the column {_COLUMN} in {path}"
        found = str(error).partition("\n")[0]
        raise refuse_data(data, expected, found, "fetch or save it again") from error


def _open(path: Path, cache: str) -> tuple[Any, int]:
    """Open the data set in the file at ``path``, read lazily; return it and its number of rows."""
    import datasets
    from pyarrow import parquet

    if path.suffix == ".arrow":
        table = datasets.Dataset.from_file(str(path))
        return table, len(table)
    table = datasets.Dataset.from_parquet(
        glob.escape(str(path)),  # the path is read as a glob pattern
        columns=[_COLUMN],
        batch_size=_AT_ONCE,
        streaming=True,  # without it, all rows would be copied into the cache first
        cache_dir=cache,
    )
    return table, parquet.read_metadata(path).num_rows  # a stream has no length
