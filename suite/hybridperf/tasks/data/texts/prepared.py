"""A tokenised corpus: a file of tokens per split, and a record of what they were made from.

They are in the folder ``hybridperf_tokens`` beside the text. A file of tokens contains their ids as
little-endian uint16 without a header, so it can be appended to, truncated and mapped into memory.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.tasks.data.samples import refuse_data
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.data.texts.files import TextFiles
    from hybridperf.tasks.data.texts.vocabulary import Vocabulary
    from hybridperf.tasks.task import Data, Text

__all__ = [
    "RULE",
    "SPLITS",
    "TOKEN_BYTES",
    "Prepared",
    "Record",
    "begin_record",
    "least_tokens",
    "window",
]

RULE: Final = 1  #: version of the tokenisation rule; tokens of another version are made again
SPLITS: Final = ("train", "evaluation")
TOKEN_BYTES: Final = 2
_FRAME: Final = 3  #: special tokens of a sample: class and two separators
_COMMAND: Final = "make them with 'hybridperf prepare TASK --data-dir FOLDER'"


@dataclass(frozen=True, slots=True)
class Record:
    """What the tokens were made from, and how much of it is done."""

    rule: int
    vocabulary_sha256: str
    files: tuple[str, ...]  #: split, name and size in bytes of each
    files_done: int
    pieces: int  #: pieces read from training files, including those held out
    train_tokens: int
    evaluation_tokens: int
    train_sha256: str = ""  #: of each file of tokens; empty until all are done
    evaluation_sha256: str = ""

    def tokens(self, split: str) -> int:
        """Return the number of tokens of ``split``."""
        return self.train_tokens if split == SPLITS[0] else self.evaluation_tokens

    @property
    def complete(self) -> bool:
        """Return whether all text has been tokenised."""
        return bool(self.train_sha256 and self.evaluation_sha256)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of tokens and vocabulary, the same for every format of the text."""
        parts = (self.vocabulary_sha256, self.train_sha256, self.evaluation_sha256)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def same_source(self, other: Record) -> bool:
        """Return whether both records are of the same text, vocabulary and rule."""
        return all(
            getattr(self, key) == getattr(other, key)
            for key in ("rule", "vocabulary_sha256", "files")
        )


def begin_record(files: TextFiles, vocabulary: Vocabulary) -> Record:
    """Return the record of a preparation in which no file is done yet."""
    return Record(RULE, vocabulary.sha256, tuple(files.listing()), 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The folder with the tokens of a corpus."""

    folder: Path

    @classmethod
    def beside(cls, folder: Path) -> Prepared:
        """Return the folder with the tokens of the text in ``folder``."""
        return cls(folder / "hybridperf_tokens")

    def path(self, split: str) -> Path:
        """Return the file with the tokens of ``split``."""
        return self.folder / f"{split}.u16"

    @property
    def record(self) -> Path:
        """Return the file of the record."""
        return self.folder / "record.json"

    def read(self) -> Record | None:
        """Read the record; return None if there is none or it is invalid."""
        try:
            return build(Record, json.loads(self.record.read_bytes()), path=str(self.record))
        except (OSError, ValueError, RecursionError, AttributeError, TypeError, UserError):
            return None

    def write(self, record: Record) -> None:
        """Replace the record, atomically."""
        write_atomically(self.record, canonical_json(asdict(record)))

    def holds(self, record: Record) -> bool:
        """Return whether the files are large enough for all tokens of ``record``."""
        return all(
            self.path(split).is_file()
            and self.path(split).stat().st_size >= record.tokens(split) * TOKEN_BYTES
            for split in SPLITS
        )

    def current(self, data: Data, begun: Record) -> Record:
        """Return the record of complete tokens of the same text as ``begun``.

        Raises:
            UserError: exit status 4 if there is none, or it is incomplete or of other text.
        """
        record, expected = self.read(), f"the tokens of the text in {self.folder}"
        if record is None or not self.holds(record):
            raise refuse_data(data, expected, "none", _COMMAND)
        if not record.same_source(begun):
            raise refuse_data(data, expected, "the tokens of other text", _COMMAND)
        if not record.complete:
            done = f"the tokens of {record.files_done} of {len(record.files)} files"
            raise refuse_data(data, expected, done, _COMMAND)
        return record


def window(text: Text) -> int:
    """Return the number of tokens of a sample without the special tokens."""
    return text.tokens - _FRAME


def least_tokens(text: Text, samples: int) -> int:
    """Return the smallest number of tokens from which ``samples`` samples can be drawn."""
    return window(text) * (samples + 1)
