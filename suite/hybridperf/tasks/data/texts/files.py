"""Find the files of a text data set, and read them in pieces: lines of text, or rows of a table.

Names of files, in a folder or one level below, begin with ``train`` and, if there is a published
held-out split, with ``val``, ``valid`` or ``validation``, or else ``test``; WikiText's own names
have the prefix ``wiki.``. The files are plain text in UTF-8, or parquet with the column ``text`` as
on the Hugging Face hub, or data sets written by ``save_to_disk``; one saved as the folder itself is
the training split. Blank lines and rows are skipped, so the same text gives the same pieces in
every format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.tasks.data.place import require_whole
from hybridperf.tasks.data.samples import refuse_data
from hybridperf.tasks.data.texts.rows import read_rows
from hybridperf.tasks.data.texts.saved import saved_shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hybridperf.tasks.task import Data

__all__ = ["TextFiles", "find_texts", "read_pieces"]

_SUFFIXES: Final = frozenset({".txt", ".raw", ".tokens"})
_MOST_BYTES: Final = 2**24  #: of a line, which is read into memory


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
    train = _named(data, folder, "train") or saved_shards(data, folder)
    found = TextFiles(folder, train, _named(data, folder, "val", "test"))
    if not found.train:
        expected = f"{folder}/train*.txt, .raw, .tokens or .parquet, or a set that was saved there"
        raise refuse_data(data, expected, "none", f"put {data.source} there")
    for path in (*found.train, *found.evaluation):
        require_whole(data, path, "text")
    return found


def read_pieces(data: Data, path: Path) -> Iterator[tuple[str, float]]:
    """Yield each piece of the text in ``path`` with the fraction of the file read so far.

    Raises:
        UserError: exit status 4 if the file is not text or is damaged.
    """
    pieces = _lines(data, path) if path.suffix in _SUFFIXES else read_rows(data, path)
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
            or [shard for path in found for shard in saved_shards(data, path)]
        ):
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
