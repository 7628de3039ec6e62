"""Text for BERT: its files, its vocabulary, and its tokens, made once before any timed run.

Names of files, in a folder or one level below, begin with ``train`` and, if there is a published
held-out split, with ``val``, ``valid`` or ``validation``, or else ``test``; WikiText's own names
have the prefix ``wiki.``. Formats are:

* plain text in UTF-8;
* parquet with the column ``text``, as on the Hugging Face hub;
* data sets written by ``save_to_disk`` of Hugging Face ``datasets``: folders of arrow files with
  ``state.json``, which lists them in the order of their rows. If several were saved together,
  ``dataset_dict.json`` beside their folders lists them. A set saved as the folder itself is the
  training split.

Blank lines and rows are skipped, so the same text gives the same pieces in every format.

Each piece of text is tokenised as by transformers' ``BertTokenizerFast``, in lower case; names of
special tokens in it are treated as text. If no held-out split was published, pieces 0 to 99 of
every 10,000 are held out: neighbours stay together, so that little held-out text is adjacent to
training text.

Tokens are in the folder ``hybridperf_tokens`` beside the text: a record of their source, and a
file per split with their ids as little-endian uint16 without a header, so it can be
appended to, truncated and mapped into memory. A second file per split has, as little-endian uint64,
the number of tokens up to the end of each piece: samples may have the lengths of pieces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import glob
import hashlib
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from hybridperf.errors import UserError
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.tasks.data.samples import (
    DataSource,
    Samples,
    Splits,
    data_folder,
    refuse_data,
    require_whole,
)
from hybridperf.tasks.schema import build

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from io import BufferedRandom
    from pathlib import Path

    from hybridperf.tasks.data.samples import PrepareProgress
    from hybridperf.tasks.task import Data, Text

__all__ = ["VOCABULARY", "Texts", "find_texts", "minimum_tokens", "read_pieces"]


class Texts(DataSource):
    """Pairs of text segments with tokens to predict."""

    def files(self, data: Data) -> list[Path]:
        """Return the files that a run reads.

        Raises:
            UserError: as `check`.
        """
        folder = data_folder(data)
        self._read_current(data)
        prepared = Prepared.beside(folder)
        files = [folder / VOCABULARY, *(prepared.path(split) for split in SPLITS)]
        return files if data.filled else files + [prepared.ends(split) for split in SPLITS]

    def check(self, data: Data) -> str:
        """Return the SHA-256 of vocabulary and tokens, from the record.

        Where samples have the lengths of pieces, their ends are part of it.

        Raises:
            UserError: exit status 4 if a file is missing, empty or truncated, or if the tokens were
                made from other text.
        """
        record = self._read_current(data)[0]
        return record.sha256 if data.filled else record.sha256_with_ends

    def prepare(self, data: Data, progress: PrepareProgress) -> bool:
        """Tokenise the text; return whether anything remained to be done.

        Raises:
            UserError: exit status 4, as `prepare_texts`.
        """
        return prepare_texts(data, _text(data), progress)

    def read(self, data: Data) -> Splits:
        """Return training blocks, without labels, and evaluation pairs [sample, tokens, 3].

        The labels of pairs are the tokens to predict [sample, masked], in order of position.

        Raises:
            UserError: as `check`.
        """
        import numpy as np

        from hybridperf.tasks.data.pairs import TextBlocks

        record, vocabulary = self._read_current(data)
        prepared = Prepared.beside(data_folder(data))
        train, evaluation = (
            TextBlocks(
                prepared.path(split),
                record.tokens(split),
                samples,
                _text(data),
                vocabulary.special,
                None if data.filled else prepared.ends(split),
            )
            for split, samples in zip(SPLITS, (data.train_samples, data.eval_samples), strict=True)
        )
        held_out = evaluation.held_out()
        no_labels = np.zeros((len(train), 0), dtype=np.int64)
        return Splits(Samples(train, no_labels), Samples(held_out.inputs, held_out.targets))

    def _read_current(self, data: Data) -> tuple[Record, Vocabulary]:
        """Return record and vocabulary of the tokens; check that there are enough of them."""
        text, folder = _text(data), data_folder(data)
        files, vocabulary = find_texts(data, folder), read_vocabulary(data, text, folder)
        prepared = Prepared.beside(folder)
        record = prepared.current(data, begin_record(files, vocabulary))
        for split, samples in zip(SPLITS, (data.train_samples, data.eval_samples), strict=True):
            remedy = f"put all of {data.source} there and prepare it again"
            least = minimum_tokens(text, samples if data.filled else 1)
            if record.tokens(split) < least:
                expected = f"at least {least} tokens for {samples} {split} samples in {folder}"
                raise refuse_data(data, expected, str(record.tokens(split)), remedy)
            if not data.filled and (found := _count_chunks(prepared.ends(split), text)) < samples:
                expected = f"at least {samples} pieces of {split} text in {folder}"
                raise refuse_data(data, expected, str(found), remedy)
        return record, vocabulary


def _count_chunks(ends: Path, text: Text) -> int:
    from hybridperf.tasks.data.pairs import chunks

    return len(chunks(ends, text.window)[0])


def _text(data: Data) -> Text:
    """Return the task's table ``[data.text]``.

    Raises:
        UserError: exit status 2 if the task has none.
    """
    if data.text is None:
        raise UserError.of("data.text", "a table [data.text]", "none", "add it to the task")
    return data.text


_SUFFIXES: Final = frozenset({".txt", ".raw", ".tokens"})
_MOST_LINE_BYTES: Final = 2**24  #: a line is read into memory
_STATE, _TOGETHER = "state.json", "dataset_dict.json"
_ARROW_END: Final = b"\xff\xff\xff\xff\0\0\0\0"  #: end-of-stream marker of Arrow's IPC format
_SAVE_AGAIN: Final = "save it again with save_to_disk"
_COLUMN: Final = "text"
_ROWS_AT_ONCE: Final = 1000  #: rows held in memory


@dataclass(frozen=True, slots=True)
class TextFiles:
    """The files of the two splits, in reading order."""

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
    train = _find_files(data, folder, "train") or _saved_shards(data, folder)
    found = TextFiles(folder, train, _find_files(data, folder, "val", "test"))
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
    pieces = _read_lines(data, path) if path.suffix in _SUFFIXES else _read_rows(data, path)
    return ((text, share) for text, share in pieces if text.strip())


def _find_files(data: Data, folder: Path, *beginnings: str) -> list[Path]:
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


def _read_lines(data: Data, path: Path) -> Iterator[tuple[str, float]]:
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


def _read_rows(data: Data, path: Path) -> Iterator[tuple[str, float]]:
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


VOCABULARY: Final = "vocab.txt"
UNKNOWN: Final = "[UNK]"  #: token of a word that the vocabulary cannot compose
_SPECIAL: Final = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The entries of a vocabulary and their ids."""

    numbers: dict[str, int]  #: id by entry
    sha256: str  #: SHA-256 of the file

    @property
    def special(self) -> tuple[int, ...]:
        """Return the ids of padding, unknown, class, separator and mask."""
        return tuple(self.numbers[entry] for entry in _SPECIAL)


def read_vocabulary(data: Data, text: Text, folder: Path) -> Vocabulary:
    """Read the vocabulary in ``folder``.

    Raises:
        UserError: exit status 4 if it is missing, invalid, or has another hash than ``text``.
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


RULE: Final = 2  #: version of the tokenisation rule; tokens of another version are made again
SPLITS: Final = ("train", "evaluation")
TOKEN_BYTES: Final = 2
END_BYTES: Final = 8
_COMMAND: Final = "make them with 'hybridperf prepare TASK --data-dir FOLDER'"


@dataclass(frozen=True, slots=True)
class Record:
    """The source of the tokens, and the progress of tokenisation."""

    rule: int
    vocabulary_sha256: str
    files: tuple[str, ...]  #: files of text: split, name and size in bytes
    files_done: int
    pieces: int  #: pieces read from training files, including held-out pieces
    train_tokens: int
    evaluation_tokens: int
    train_sha256: str = ""  #: SHA-256 of the file of tokens; empty until tokenisation is complete
    evaluation_sha256: str = ""
    train_pieces: int = 0  #: pieces of the split, whose ends are recorded
    evaluation_pieces: int = 0
    ends_sha256: str = ""  #: SHA-256 of the ends of pieces of both splits, once complete

    def tokens(self, split: str) -> int:
        """Return the number of tokens of ``split``."""
        return self.train_tokens if split == SPLITS[0] else self.evaluation_tokens

    def split_pieces(self, split: str) -> int:
        """Return the number of pieces of ``split``."""
        return self.train_pieces if split == SPLITS[0] else self.evaluation_pieces

    @property
    def complete(self) -> bool:
        """Return whether all text has been tokenised."""
        return bool(self.train_sha256 and self.evaluation_sha256)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of tokens and vocabulary, the same for every format of the text."""
        parts = (self.vocabulary_sha256, self.train_sha256, self.evaluation_sha256)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @property
    def sha256_with_ends(self) -> str:
        """Return the SHA-256 of tokens, vocabulary and ends of pieces."""
        return hashlib.sha256(f"{self.sha256} {self.ends_sha256}".encode()).hexdigest()

    def same_source(self, other: Record) -> bool:
        """Return whether both records have the same text, vocabulary and rule."""
        return all(
            getattr(self, key) == getattr(other, key)
            for key in ("rule", "vocabulary_sha256", "files")
        )


def begin_record(files: TextFiles, vocabulary: Vocabulary) -> Record:
    """Return the record of a preparation before its first file."""
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

    def ends(self, split: str) -> Path:
        """Return the file with the number of tokens up to the end of each piece of ``split``."""
        return self.folder / f"{split}_ends.u64"

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
            path.is_file() and path.stat().st_size >= size
            for split in SPLITS
            for path, size in (
                (self.path(split), record.tokens(split) * TOKEN_BYTES),
                (self.ends(split), record.split_pieces(split) * END_BYTES),
            )
        )

    def current(self, data: Data, begun: Record) -> Record:
        """Return the record of complete tokens of the same text as ``begun``.

        Raises:
            UserError: exit status 4 if the record is missing, incomplete or of a different text.
        """
        record, expected = self.read(), f"the tokens of the text in {self.folder}"
        if record is None or not self.holds(record):
            raise refuse_data(data, expected, "none", _COMMAND)
        if not record.same_source(begun):
            raise refuse_data(data, expected, "the tokens of a different text", _COMMAND)
        if not record.complete:
            done = f"the tokens of {record.files_done} of {len(record.files)} files"
            raise refuse_data(data, expected, done, _COMMAND)
        return record


def minimum_tokens(text: Text, samples: int) -> int:
    """Return the smallest number of tokens for ``samples`` samples."""
    return text.window * (samples + 1)


_AT_ONCE: Final = 2000  #: pieces tokenised in parallel
_HELD_OUT, _OF_PIECES = 100, 10_000


def prepare_texts(data: Data, text: Text, progress: PrepareProgress) -> bool:
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
            raise refuse_data(data, expected, "a running command", remedy) from error
        yield


class _Preparation:
    """Tokenise a corpus file by file, updating the record after each file."""

    def __init__(
        self,
        data: Data,
        vocabulary: Vocabulary,
        prepared: Prepared,
        paths: list[tuple[str, Path]],
        progress: PrepareProgress,
    ) -> None:
        self._data, self._prepared, self._paths = data, prepared, paths
        self._tokenizer, self._progress = _tokenizer(vocabulary), progress
        self._sizes = [path.stat().st_size for _, path in paths]
        self._holds_out = all(split == SPLITS[0] for split, _ in paths)

    def resume(self, record: Record) -> None:
        """Tokenise the files that are not done according to ``record``."""
        self._prepared.write(record)  # before tokens of a different text are truncated
        with contextlib.ExitStack() as stack:

            def reopen(path: Path, size: int) -> BufferedRandom:
                """Open a file to append to, without the end that an interrupted command wrote."""
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                file = stack.enter_context(os.fdopen(descriptor, "r+b"))
                file.truncate(size)
                file.seek(0, os.SEEK_END)
                return file

            prepared = self._prepared
            outputs = {s: reopen(prepared.path(s), record.tokens(s) * TOKEN_BYTES) for s in SPLITS}
            ends = {s: reopen(prepared.ends(s), record.split_pieces(s) * END_BYTES) for s in SPLITS}
            for split, path in self._paths[record.files_done :]:
                record = self._file(record, outputs, ends, split, path)
                for output in (*outputs.values(), *ends.values()):
                    output.flush()
                    os.fsync(output.fileno())
                self._prepared.write(record)
            train, evaluation = (_sha256(outputs[split]) for split in SPLITS)
            together = " ".join(_sha256(ends[split]) for split in SPLITS)
        record = dataclasses.replace(
            record,
            train_sha256=train,
            evaluation_sha256=evaluation,
            ends_sha256=hashlib.sha256(together.encode()).hexdigest(),
        )
        self._prepared.write(record)

    def _file(
        self,
        record: Record,
        outputs: dict[str, BufferedRandom],
        ends: dict[str, BufferedRandom],
        split: str,
        path: Path,
    ) -> Record:
        """Append the file at ``path``: tokens to ``outputs``, ends of pieces to ``ends``."""
        import numpy as np

        number = record.pieces
        before, size = sum(self._sizes[: record.files_done]), path.stat().st_size
        with contextlib.closing(read_pieces(self._data, path)) as pieces:
            while some := list(islice(pieces, _AT_ONCE)):
                encodings = self._tokenizer.encode_batch_fast(
                    [piece for piece, _ in some], add_special_tokens=False
                )
                for encoding in encodings:
                    where = self._split_of(split, number)
                    outputs[where].write(np.array(encoding.ids, dtype="<u2").tobytes())
                    end = outputs[where].tell() // TOKEN_BYTES
                    ends[where].write(end.to_bytes(END_BYTES, "little"))
                    number += 1
                tokens = sum(output.tell() for output in outputs.values()) // TOKEN_BYTES
                self._progress(before + size * some[-1][1], sum(self._sizes), f"{tokens:,} tokens")
        return dataclasses.replace(
            record,
            files_done=record.files_done + 1,
            pieces=number if split == SPLITS[0] else record.pieces,
            train_tokens=outputs["train"].tell() // TOKEN_BYTES,
            evaluation_tokens=outputs["evaluation"].tell() // TOKEN_BYTES,
            train_pieces=ends["train"].tell() // END_BYTES,
            evaluation_pieces=ends["evaluation"].tell() // END_BYTES,
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
