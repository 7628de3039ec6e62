"""Files of text, and what each holds piece by piece: a line of plain text, or a row of parquet.

A folder, or folders in it, hold files whose names begin with ``train`` and, where there is a
published held-out part, with ``val``, ``valid`` or ``validation``, or else ``test``; WikiText's own
names begin with ``wiki.``. They are plain text in UTF-8, or parquet with the column ``text``, as
the Hugging Face hub keeps ``wikitext`` and ``wikipedia``. Blank lines and rows are no pieces: one
text is the same in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.tasks.data.place import require_whole
from suite.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suite.tasks.task import Data

__all__ = ["TextFiles", "find_texts", "read_pieces"]

_SUFFIXES: Final = frozenset({".txt", ".raw", ".tokens"})
_COLUMN: Final = "text"
_ROWS: Final = 1000  #: of parquet, read at once
_MOST_BYTES: Final = 2**24  #: of a line, which is held in memory whole


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The files of the two splits, each in the order of their names."""

    folder: Path
    train: list[Path]
    evaluation: list[Path]  #: empty where nothing was held out by those who published

    def listing(self) -> list[str]:
        """Return the split, name and size of each file, those to train on first."""
        return [
            f"{split} {path.relative_to(self.folder).as_posix()} {path.stat().st_size}"
            for split, paths in (("train", self.train), ("evaluation", self.evaluation))
            for path in paths
        ]


def find_texts(data: Data, folder: Path) -> TextFiles:
    """Return the files in ``folder``.

    Raises:
        Refusal: exit status 4 where there are none to train on, or one is empty or cut off.
    """
    found = TextFiles(folder, _named(folder, "train"), _named(folder, "val", "test"))
    if not found.train:
        expected = f"{folder}/train*.txt, .raw, .tokens or .parquet"
        raise refuse_data(data, expected, "none", f"put {data.source} there")
    for path in (*found.train, *found.evaluation):
        require_whole(data, path, "text")
    return found


def read_pieces(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    """Yield each piece of the text in ``path``, and what share of the file is then read.

    Raises:
        Refusal: exit status 4 where the file is no text, or is damaged.
    """
    pieces = _rows(data, path) if path.suffix == ".parquet" else _lines(data, path)
    return ((text, share) for text, share in pieces if text.strip())


def _named(folder: Path, *beginnings: str) -> list[Path]:
    for beginning in beginnings:
        found = sorted(
            path
            for place in ("", "*/")  # no deeper: the folder may hold a million images too
            for name in (beginning, f"wiki.{beginning}")
            for path in folder.glob(f"{place}{name}*")
            if path.is_file()
        )
        plain = [path for path in found if path.suffix in _SUFFIXES]
        if chosen := plain or [path for path in found if path.suffix == ".parquet"]:
            return chosen
    return []


def _lines(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    size, read, number = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while line := file.readline(_MOST_BYTES + 1):
            read, number = read + len(line), number + 1
            where = f"in line {number} of {path}"
            if len(line) > _MOST_BYTES:
                expected = f"at most {_MOST_BYTES} bytes {where}"
                raise refuse_data(data, expected, "more", "put paragraphs on lines of their own")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                found = f"the byte {line[error.start]:#04x}"
                expected = f"UTF-8 text {where}"
                raise refuse_data(data, expected, found, "fetch it again, or convert it") from error
            yield text, read / size


def _rows(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    # What `datasets` reads parquet with, without its copy of the whole corpus in a cache.
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            for batch in file.iter_batches(_ROWS, columns=[_COLUMN]):
                for text in batch.column(_COLUMN).cast("large_string").to_pylist():
                    number += 1
                    yield text or "", number / rows
    except Exception as error:  # any: it raises what its readers do, under many names
        expected = f"a parquet file with the column {_COLUMN} in {path}"
        found = str(error).partition("\n")[0]
        raise refuse_data(data, expected, found, "fetch it again") from error
