"""Folders of text with a vocabulary, made for tests, and the task that reads them."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from hybridperf.tasks.data import prepare
from hybridperf.tasks.data.samples import DATA_VARIABLE
from hybridperf.tasks.data.texts import VOCABULARY
from hybridperf.tasks.task import Data, Text
from tests.archives import extract

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SPECIAL: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS: Final = ("the", "ship", "sails", "to", "sea", "and", "a", "gull", "##s", ",", ".", "north")
_WIKITEXT: Final = Path(__file__).parents[2] / "shared/data/wikitext2.tar.xz"


def lines(count: int, first: int = 0) -> list[str]:
    """Return lines of few words, no two alike in a row, every fourth one blank."""
    words = [word for word in WORDS if not word.startswith("##")]
    return [
        " "
        if number % 4 == 3
        else " ".join(words[(number * 7 + place * place) % len(words)] for place in range(12))
        for number in range(first, first + count)
    ]


def write_vocabulary(folder: Path, entries: Iterable[str] = WORDS) -> str:
    """Write a vocabulary into ``folder``; return its SHA-256."""
    content = "".join(f"{entry}\n" for entry in (*SPECIAL, *entries)).encode()
    (folder / VOCABULARY).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def write_lines(path: Path, text: Sequence[str]) -> None:
    """Write a file of plain text."""
    path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")


def write_rows(path: Path, text: Sequence[str]) -> None:
    """Write a parquet file with the column ``text``."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"id": range(len(text)), "text": list(text)}), path)


def text_data(
    vocabulary_sha256: str,
    *,
    entries: int = len(WORDS),
    tokens: int = 16,
    masked: int = 2,
    samples: tuple[int, int] = (40, 10),
) -> Data:
    """Return the data of a task that reads the folder of ``HYBRIDPERF_DATA``."""
    text = Text(tokens, masked, len(SPECIAL) + entries, vocabulary_sha256)
    return Data("texts", "some text", "", "as its files say", *samples, editions={}, text=text)


def wikitext(folder: Path) -> tuple[Path, list[str]]:
    """Unpack WikiText-2's validation and test text into ``folder``; return a vocabulary for it."""
    if not _WIKITEXT.exists():
        pytest.skip("WikiText-2 is not beside this checkout")
    extract(_WIKITEXT, folder)
    place = folder / "wikitext2"
    (place / "test.txt").rename(place / "wiki.train.tokens")
    (place / "valid.txt").rename(place / "wiki.valid.tokens")
    text = (place / "wiki.train.tokens").read_text(encoding="utf-8").lower()
    characters = sorted(set(text) - set(" \n"))
    common = [word for word, _ in collections.Counter(text.split()).most_common(3000)]
    pieces = [*characters, *(f"##{character}" for character in characters), *common]
    return place, list(dict.fromkeys(pieces))


def wikitext_pieces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Data:
    """Prepare WikiText-2 in ``folder``; return data whose samples are its pieces, up to 128 tokens.

    ``monkeypatch`` names the folder in the environment, for this process and its children.
    """
    place, entries = wikitext(folder)
    monkeypatch.setenv(DATA_VARIABLE, str(place))
    data = text_data(
        write_vocabulary(place, entries),
        entries=len(entries),
        tokens=128,
        masked=19,
        samples=(2000, 1000),
    )
    data = dataclasses.replace(data, filled=False)
    prepare(data, lambda *_: None)
    return data
