"""Tokenise text on all cores, once and before any timed run; resumable after an interruption.

Each piece of text is tokenised as by transformers' ``BertTokenizerFast``, in lower case; names of
special tokens in it are treated as text. If no held-out split was published, pieces 0 to 99 of
every 10,000 are held out: neighbours stay together, so that little held-out text is adjacent to
training text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from hybridperf.tasks.data.folder import data_folder
from hybridperf.tasks.data.samples import refuse_data
from hybridperf.tasks.data.texts.files import find_texts, read_pieces
from hybridperf.tasks.data.texts.prepared import SPLITS, TOKEN_BYTES, Prepared, Record, begin_record
from hybridperf.tasks.data.texts.vocabulary import UNKNOWN, read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedRandom
    from pathlib import Path

    from hybridperf.tasks.data.samples import Progress
    from hybridperf.tasks.data.texts.vocabulary import Vocabulary
    from hybridperf.tasks.task import Data, Text

__all__ = ["prepare_texts"]

_AT_ONCE: Final = 2000  #: pieces tokenised in parallel
_HELD_OUT, _OF_PIECES = 100, 10_000


def prepare_texts(data: Data, text: Text, progress: Progress) -> bool:
    """Tokenise the text of ``data``; return whether anything remained to be done.

    Raises:
        UserError: exit status 4 if text or vocabulary is invalid, if there is no disk space, or if
            another command is preparing the same text.
    """
    folder = data_folder(data)
    files, vocabulary = find_texts(data, folder), read_vocabulary(data, text, folder)
    prepared, begun = Prepared.beside(folder), begin_record(files, vocabulary)
    try:
        prepared.folder.mkdir(exist_ok=True)
        with _exclusive_lock(data, prepared.folder):
            record = prepared.read()
            if record is None or not record.same_source(begun) or not prepared.holds(record):
                record = begun
            if record.complete:
                return False
            paths = [(split, path) for split in SPLITS for path in getattr(files, split)]
            _Preparation(data, vocabulary, prepared, paths, progress).resume(record)
            return True
    except OSError as error:
        expected = f"readable text, and disk space for tokens in {prepared.folder}"
        remedy = "correct that and repeat the command, which resumes"
        raise refuse_data(data, expected, str(error), remedy) from error


@contextlib.contextmanager
def _exclusive_lock(data: Data, folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``folder``, which the kernel releases if the process dies.

    Raises:
        UserError: exit status 4 if another process holds it.
    """
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            expected, remedy = f"no other command that prepares {folder}", "wait until it ends"
            raise refuse_data(data, expected, "one at work", remedy) from error
        yield


class _Preparation:
    """Tokenise a corpus file by file, updating the record after each file."""

    def __init__(
        self,
        data: Data,
        vocabulary: Vocabulary,
        prepared: Prepared,
        paths: list[tuple[str, Path]],
        progress: Progress,
    ) -> None:
        self._data, self._prepared, self._paths = data, prepared, paths
        self._tokenizer, self._progress = _tokenizer(vocabulary), progress
        self._sizes = [path.stat().st_size for _, path in paths]
        self._holds_out = all(split == SPLITS[0] for split, _ in paths)

    def resume(self, record: Record) -> None:
        """Tokenise the files that are not done according to ``record``."""
        self._prepared.write(record)  # before tokens of other text are truncated
        with contextlib.ExitStack() as stack:
            outputs: dict[str, BufferedRandom] = {}
            for split in SPLITS:
                descriptor = os.open(self._prepared.path(split), os.O_RDWR | os.O_CREAT, 0o644)
                outputs[split] = stack.enter_context(os.fdopen(descriptor, "r+b"))
                # Tokens that an interrupted command wrote after its last record are made again.
                outputs[split].truncate(record.tokens(split) * TOKEN_BYTES)
                outputs[split].seek(0, os.SEEK_END)
            for split, path in self._paths[record.files_done :]:
                record = self._file(record, outputs, split, path)
                for output in outputs.values():
                    output.flush()
                    os.fsync(output.fileno())
                self._prepared.write(record)
            train, evaluation = (_sha256(outputs[split]) for split in SPLITS)
        record = dataclasses.replace(record, train_sha256=train, evaluation_sha256=evaluation)
        self._prepared.write(record)

    def _file(
        self, record: Record, outputs: dict[str, BufferedRandom], split: str, path: Path
    ) -> Record:
        """Append the tokens of the file at ``path`` to ``outputs``; return the new record."""
        import numpy as np

        number = record.pieces
        before, size = sum(self._sizes[: record.files_done]), path.stat().st_size
        with contextlib.closing(read_pieces(self._data, path)) as pieces:
            while some := list(islice(pieces, _AT_ONCE)):
                encodings = self._tokenizer.encode_batch_fast(
                    [piece for piece, _ in some], add_special_tokens=False
                )
                for encoding in encodings:
                    output = outputs[self._split_of(split, number)]
                    output.write(np.array(encoding.ids, dtype="<u2").tobytes())
                    number += 1
                tokens = sum(output.tell() for output in outputs.values()) // TOKEN_BYTES
                self._progress(before + size * some[-1][1], sum(self._sizes), f"{tokens:,} tokens")
        return dataclasses.replace(
            record,
            files_done=record.files_done + 1,
            pieces=number if split == SPLITS[0] else record.pieces,
            train_tokens=outputs["train"].tell() // TOKEN_BYTES,
            evaluation_tokens=outputs["evaluation"].tell() // TOKEN_BYTES,
        )

    def _split_of(self, split: str, number: int) -> str:
        """Return the split of piece ``number`` from a file of the published ``split``."""
        return SPLITS[1] if self._holds_out and number % _OF_PIECES < _HELD_OUT else split


def _sha256(file: BufferedRandom) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _tokenizer(vocabulary: Vocabulary) -> Any:
    """Return BERT's tokeniser."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    tokenizer = Tokenizer(WordPiece(vocabulary.numbers, unk_token=UNKNOWN))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer
