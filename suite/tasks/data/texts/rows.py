"""Rows of text as Hugging Face ``datasets`` reads them: a parquet file, or one of a saved set."""

from __future__ import annotations

import glob
import tempfile
from typing import TYPE_CHECKING, Any, Final

from suite.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suite.tasks.task import Data

__all__ = ["read_rows"]

_COLUMN: Final = "text"
_AT_ONCE: Final = 1000  #: rows held in memory


def read_rows(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    """Yield the text of each row, and what share of the rows is then read.

    Raises:
        Refusal: exit status 4 where the file is damaged, or has no column of text.
    """
    import datasets

    number = 0
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what fails is said below, once
    try:
        with tempfile.TemporaryDirectory() as cache:
            table, rows = _open(path, cache)
            for part in table.with_format("arrow").iter(_AT_ONCE):
                texts = part.column(_COLUMN).cast("large_string")
                texts.validate(full=True)  # that a damaged file leads to no place outside of it
                for text in texts.to_pylist():
                    number += 1
                    yield text or "", number / rows
    except Exception as error:  # any: it raises what its readers do, under many names
        expected = f"rows with the column {_COLUMN} in {path}"
        found = str(error).partition("\n")[0]
        raise refuse_data(data, expected, found, "fetch or save it again") from error


def _open(path: Path, cache: str) -> tuple[Any, int]:
    """Return the data set in the file at ``path``, read as it is asked for, and its rows."""
    import datasets
    from pyarrow import parquet

    if path.suffix == ".arrow":
        table = datasets.Dataset.from_file(str(path))
        return table, len(table)
    table = datasets.Dataset.from_parquet(
        glob.escape(str(path)),  # it takes a pattern
        columns=[_COLUMN],
        batch_size=_AT_ONCE,
        streaming=True,  # else all is copied into its cache first
        cache_dir=cache,
    )
    return table, parquet.read_metadata(path).num_rows  # a stream does not know its end
