"""Files of text, and what each holds piece by piece: a line of plain text, or a row of a table.

A folder, or folders in it, hold what has names that begin with ``train`` and, where there is a
published held-out part, with ``val``, ``valid`` or ``validation``, or else ``test``; WikiText's own
names begin with ``wiki.``. It is plain text in UTF-8; or parquet with the column ``text``, as the
Hugging Face hub keeps ``wikitext`` and ``wikipedia``; or what ``save_to_disk`` wrote of such rows,
which is trained on where it is the folder itself. Blank lines and rows are no pieces: one text is
the same in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.tasks.data.place import require_whole
from suite.tasks.data.samples import refuse_data
from suite.tasks.data.texts.rows import read_rows
from suite.tasks.data.texts.saved import saved_shards

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suite.tasks.task import Data

__all__ = ["TextFiles", "find_texts", "read_pieces"]

_SUFFIXES: Final = frozenset({".txt", ".raw", ".tokens"})
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
        Refusal: exit status 4 where there are none to train on, or one is missing, empty or cut
            off.
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
    """Yield each piece of the text in ``path``, and what share of the file is then read.

    Raises:
        Refusal: exit status 4 where the file is no text, or is damaged.
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
