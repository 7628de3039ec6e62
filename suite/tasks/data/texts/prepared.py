"""What a corpus was made into, and of what: two files of tokens, and a record beside them.

Both lie in the folder ``hybridperf_tokens`` beside the text. A file of tokens is nothing but their
numbers, two bytes each, the lower first: it can be added to, cut and mapped into memory as it is.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from suite.refusal import Refusal
from suite.runs.atomic import canonical_json, write_atomically
from suite.tasks.data.samples import refuse_data
from suite.tasks.schema import build

if TYPE_CHECKING:
    from pathlib import Path

    from suite.tasks.data.texts.files import TextFiles
    from suite.tasks.data.texts.vocabulary import Vocabulary
    from suite.tasks.task import Data, Text

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

RULE: Final = 1  #: of how text becomes tokens; another rule makes what is there stale
SPLITS: Final = ("train", "evaluation")
TOKEN_BYTES: Final = 2
_FRAME: Final = 3  #: special tokens of a sample: class and two separators
_COMMAND: Final = "make them with 'hybridperf prepare TASK --data-dir FOLDER'"


@dataclass(frozen=True, slots=True)
class Record:
    """What tokens were made from, and how far that has come."""

    rule: int
    vocabulary_sha256: str
    files: tuple[str, ...]  #: split, name and size in bytes of each
    files_done: int
    pieces: int  #: of text to train on, held out or not, that were read
    train_tokens: int
    evaluation_tokens: int
    train_sha256: str = ""  #: of each file of tokens; empty until all are done
    evaluation_sha256: str = ""

    def tokens(self, split: str) -> int:
        """Return how many tokens ``split`` has."""
        return self.train_tokens if split == SPLITS[0] else self.evaluation_tokens

    @property
    def complete(self) -> bool:
        """Return whether all text has become tokens."""
        return bool(self.train_sha256 and self.evaluation_sha256)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the tokens and their vocabulary, however the text was kept."""
        parts = (self.vocabulary_sha256, self.train_sha256, self.evaluation_sha256)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def is_of(self, other: Record) -> bool:
        """Tell whether the tokens of both come of the same text by the same rule."""
        return all(
            getattr(self, key) == getattr(other, key)
            for key in ("rule", "vocabulary_sha256", "files")
        )


def begin_record(files: TextFiles, vocabulary: Vocabulary) -> Record:
    """Return the record of nothing done."""
    return Record(RULE, vocabulary.sha256, tuple(files.listing()), 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The folder of a corpus' tokens."""

    folder: Path

    @classmethod
    def beside(cls, folder: Path) -> Prepared:
        """Return where the tokens of the text in ``folder`` lie."""
        return cls(folder / "hybridperf_tokens")

    def path(self, split: str) -> Path:
        """Return the file with the tokens of ``split``."""
        return self.folder / f"{split}.u16"

    @property
    def record(self) -> Path:
        """Return the file of the record."""
        return self.folder / "record.json"

    def read(self) -> Record | None:
        """Return the record; None where there is none, or none that can be read."""
        try:
            return build(Record, json.loads(self.record.read_bytes()), path=str(self.record))
        except (OSError, ValueError, RecursionError, AttributeError, TypeError, Refusal):
            return None

    def write(self, record: Record) -> None:
        """Replace the record."""
        write_atomically(self.record, canonical_json(asdict(record)))

    def holds(self, record: Record) -> bool:
        """Tell whether the files have room for all tokens of ``record``."""
        return all(
            self.path(split).is_file()
            and self.path(split).stat().st_size >= record.tokens(split) * TOKEN_BYTES
            for split in SPLITS
        )

    def current(self, data: Data, begun: Record) -> Record:
        """Return the record of the tokens that all text of ``begun`` has become.

        Raises:
            Refusal: exit status 4 where there is none, or one of other text.
        """
        record, expected = self.read(), f"tokens of all text in {self.folder}"
        if record is None or not self.holds(record):
            raise refuse_data(data, expected, "none", _COMMAND)
        if not record.is_of(begun):
            raise refuse_data(data, expected, "those of other text", _COMMAND)
        if not record.complete:
            done = f"those of {record.files_done} of {len(record.files)} files"
            raise refuse_data(data, expected, done, _COMMAND)
        return record


def window(text: Text) -> int:
    """Return how many tokens of the text a sample has."""
    return text.tokens - _FRAME


def least_tokens(text: Text, samples: int) -> int:
    """Return how many tokens make ``samples`` blocks that are as long as a window."""
    return window(text) * (samples + 1)
