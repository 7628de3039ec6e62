"""BERT's WordPiece vocabulary, the file ``vocab.txt`` with one entry per line."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.tasks.data.samples import refuse_data

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.task import Data, Text

__all__ = ["UNKNOWN", "VOCABULARY", "Vocabulary", "read_vocabulary"]

VOCABULARY: Final = "vocab.txt"
UNKNOWN: Final = "[UNK]"  #: token of a word that the vocabulary cannot compose
_SPECIAL: Final = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The entries of a vocabulary and their ids."""

    numbers: dict[str, int]  #: id by entry
    sha256: str  #: of the file

    @property
    def special(self) -> tuple[int, ...]:
        """Return the ids of padding, unknown, class, separator and mask."""
        return tuple(self.numbers[entry] for entry in _SPECIAL)


def read_vocabulary(data: Data, text: Text, folder: Path) -> Vocabulary:
    """Read the vocabulary in ``folder``.

    Raises:
        UserError: exit status 4 if it is missing, invalid, or not the one that ``text`` states.
    """
    path = folder / VOCABULARY
    remedy = "put the vocabulary of bert-base-uncased there"
    if not path.is_file():
        raise refuse_data(data, f"a vocabulary in {path}", "none", remedy)
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != text.vocabulary_sha256:
        expected = f"{path} with SHA-256 {text.vocabulary_sha256[:12]}..."
        raise refuse_data(data, expected, f"{sha256[:12]}...", remedy)
    try:
        entries = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise refuse_data(data, f"UTF-8 text in {path}", str(error), remedy) from error
    numbers = {entry: number for number, entry in enumerate(entries)}
    if len(numbers) != text.vocabulary or not numbers.keys() >= set(_SPECIAL):
        expected = f"{text.vocabulary} entries in {path}, {', '.join(_SPECIAL)} among them"
        raise refuse_data(data, expected, f"{len(numbers)}", remedy)
    return Vocabulary(numbers, sha256)
