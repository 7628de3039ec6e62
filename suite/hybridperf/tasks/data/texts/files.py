"""Find the files of a text data set, and read them in pieces: lines of text, or rows of a table.

Names of files, in a folder or one level below, begin with ``train`` and, if there is a published
held-out split, with ``val``, ``valid`` or ``validation``, or else ``test``; WikiText's own names
have the prefix ``wiki.``. Formats are:

* plain text in UTF-8;
* parquet with the column ``text``, as on the Hugging Face hub;
* data sets written by ``save_to_disk`` of Hugging Face ``datasets``: folders of arrow files with
  ``state.json``, which lists them in the order of their rows. If several were saved together,
  ``dataset_dict.json`` beside their folders lists them. One saved as the folder itself is the
  training split.

Blank lines and rows are skipped, so the same text gives the same pieces in every format.
"""

from __future__ import annotations

import glob
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from hybridperf.tasks.data.folder import require_whole
from hybridperf.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from hybridperf.tasks.task import Data

__all__ = ["TextFiles", "find_texts", "read_pieces"]

_SUFFIXES: Final = frozenset({".txt", ".raw", ".tokens"})
_MOST_LINE_BYTES: Final = 2**24  #: a line is read into memory
_STATE, _TOGETHER = "state.json", "dataset_dict.json"
_ARROW_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  #: end-of-stream marker of Arrow's IPC format
_SAVE_AGAIN: Final = "save it again with save_to_disk"
_COLUMN: Final = "text"
_ROWS_AT_ONCE: Final = 1000  #: rows held in memory


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The files of the two splits, in the order in which they are read."""

    folder: Path
    train: list[Path]
    evaluation: list[Path]  #: empty if no held-out split was published

    def listing(self) -> list[str]:
        """Return ``split name size`` of each file, with the size in bytes, training files first."""
        return [
            f"{split} {path.relative_to(self.folder).as_posix()} {path.stat().st_size}"
            for split, paths in (("train", self.train), ("evaluation", self.evaluation))
            for path in paths
        ]


def find_texts(data: Data, folder: Path) -> TextFiles:
    """Find the text files in ``folder``.

    Raises:
        UserError: exit status 4 if there are none to train on, or one is missing, empty or
            truncated.
    """
    train = _named(data, folder, "train") or _saved_shards(data, folder)
    found = TextFiles(folder, train, _named(data, folder, "val", "test"))
    if not found.train:
        expected = f"{folder}/train*.txt, .raw, .tokens or .parquet, or a saved data set"
        raise refuse_data(data, expected, "none", f"put {data.source} there")
    for path in (*found.train, *found.evaluation):
        require_whole(data, path, "text")
    return found


def read_pieces(data: Data, path: Path) -> Generator[tuple[str, float], None, None]:
    """Yield each piece of the text in ``path`` with the fraction of the file read so far.

    Close it: until then it may keep a temporary folder.

    Raises:
        UserError: exit status 4 if the file is not text or is damaged.
    """
    pieces = _lines(data, path) if path.suffix in _SUFFIXES else _rows(data, path)
    return ((text, share) for text, share in pieces if text.strip())


def _named(data: Data, folder: Path, *beginnings: str) -> list[Path]:
    for beginning in beginnings:
        found = sorted(
            path
            for place in ("", "*/")  # no deeper: the folder may hold a million images too
            for name in (beginning, f"wiki.{beginning}")
            for path in folder.glob(f"{place}{name}*")
        )
        files = [path for path in found if path.is_file()]
        if chosen := (
            [path for path in files if path.suffix in _SUFFIXES]
            or [path for path in files if path.suffix == ".parquet"]
            or [shard for path in found for shard in _saved_shards(data, path)]
        ):
            return chosen
    return []


class _Shard(msgspec.Struct):
    filename: str


class _State(msgspec.Struct, rename={"shards": "_data_files"}):
    shards: list[_Shard]


class _Together(msgspec.Struct):
    splits: list[str]


_Named = TypeVar("_Named", _State, _Together)


def _saved_shards(data: Data, folder: Path) -> list[Path]:
    """Return the files of the set saved in ``folder``, in the order of rows; empty if none is.

    Raises:
        UserError: exit status 4 if a file, or a set saved together with it, is missing or
            truncated.
    """
    if not (folder / _STATE).is_file():
        return []
    together = folder.parent / _TOGETHER
    if together.is_file():
        for split in _read_list(data, together, _Together).splits:
            _require_saved(data, together.parent, split, within=_STATE)
    names = [shard.filename for shard in _read_list(data, folder / _STATE, _State).shards]
    paths = [_require_saved(data, folder, name) for name in names]
    for path in paths:
        with path.open("rb") as file:
            file.seek(max(-len(_ARROW_END), -path.stat().st_size), os.SEEK_END)
            if file.read() != _ARROW_END:
                raise refuse_data(
                    data, f"{path} to be a whole arrow file", "a truncated file", _SAVE_AGAIN
                )
    return paths


def _read_list(data: Data, path: Path, kind: type[_Named]) -> _Named:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, UnicodeDecodeError, RecursionError, msgspec.MsgspecError) as error:
        raise refuse_data(
            data, f"{path} in the format of save_to_disk", str(error), _SAVE_AGAIN
        ) from error


def _require_saved(data: Data, folder: Path, name: str, within: str = "") -> Path:
    """Return the file ``name`` in ``folder``, or the file ``within`` its subfolder ``name``.

    Raises:
        UserError: exit status 4 if it does not exist.
    """
    names = {each.name for each in folder.iterdir()}  # excludes names such as ../x
    if name in names and (path := folder / name / within).is_file():
        return path
    raise refuse_data(data, f"{name} in the saved data set {folder}", "none", _SAVE_AGAIN)


def _lines(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    size, read, number = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while line := file.readline(_MOST_LINE_BYTES + 1):
            read, number = read + len(line), number + 1
            where = f"in line {number} of {path}"
            if len(line) > _MOST_LINE_BYTES:
                expected = f"at most {_MOST_LINE_BYTES} bytes {where}"
                raise refuse_data(data, expected, "more", "put paragraphs on lines of their own")
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                found = f"the byte {line[error.start]:#04x}"
                expected = f"UTF-8 text {where}"
                raise refuse_data(data, expected, found, "fetch it again, or convert it") from error
            yield text, read / size


def _rows(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    """Yield the text of each row with the fraction of the rows read so far.

    Raises:
        UserError: exit status 4 if the file is damaged or has no column of text.
    """
    import datasets

    number = 0
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # errors are reported below
    try:
        with tempfile.TemporaryDirectory() as cache:
            table, rows = _open_table(path, cache)
            for part in table.with_format("arrow").iter(_ROWS_AT_ONCE):
                texts = part.column(_COLUMN).cast("large_string")
                texts.validate(full=True)  # offsets of a damaged file may lie outside its buffers
                for text in texts.to_pylist():
                    number += 1
                    yield text or "", number / rows
    except Exception as error:  # datasets passes on the exceptions of many readers
        expected = f"rows with the column {_COLUMN} in {path}"
        found = str(error).partition("\n")[0]
        raise refuse_data(data, expected, found, "fetch or save it again") from error


def _open_table(path: Path, cache: str) -> tuple[Any, int]:
    """Open the data set in the file at ``path``, read lazily; return it and its number of rows."""
    import datasets
    from pyarrow import parquet

    if path.suffix == ".arrow":
        table = datasets.Dataset.from_file(str(path))
        return table, len(table)
    table = datasets.Dataset.from_parquet(
        glob.escape(str(path)),  # the path is read as a glob pattern
        columns=[_COLUMN],
        batch_size=_ROWS_AT_ONCE,
        streaming=True,  # without it, all rows would be copied into the cache first
        cache_dir=cache,
    )
    return table, parquet.read_metadata(path).num_rows  # a stream has no length
