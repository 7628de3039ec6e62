"""Find the ``:::MLLOG`` lines of a file, a piece at a time: memory does not grow with the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.logs.archives import archive_kind
from suite.logs.log import FILE_CAP_BYTES, LINE_CAP_BYTES
from suite.logs.strict_json import open_bounded
from suite.logs.writer import TOKEN as WRITTEN

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["A_LOG", "PUT_IT_THERE", "TOKEN", "mllog_lines"]

TOKEN: Final = WRITTEN.strip().encode()
A_LOG: Final = "a log: a text file of at most 64 MiB with :::MLLOG lines"
PUT_IT_THERE: Final = "put the log itself there, unpacked, in UTF-8 and with leave to read it"
_PIECE_BYTES: Final = 2**20
_MOST_KEPT: Final = len(TOKEN) + LINE_CAP_BYTES + 2  # one more than an allowed line and its \r
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")  #: how such text begins

Lines = tuple[list[int], list[bytes]]  #: line numbers, counted from 1, and what stands there


def mllog_lines(path: Path, digest: hashlib._Hash | None = None) -> Iterator[Lines]:
    """Yield, piece by piece of the file, what follows the first token of each line that has one.

    Other output is skipped. Lines longer than `LINE_CAP_BYTES` are yielded longer than that, but
    not whole. ``digest`` is fed the whole file.

    Raises:
        OSError: where the file cannot be read.
        ValueError: where it is no regular file, larger than `FILE_CAP_BYTES`, or no text.
    """
    number, rest = 1, b""
    with open_bounded(path, FILE_CAP_BYTES) as file:
        while piece := file.read(_PIECE_BYTES):
            if digest is not None:
                digest.update(piece)
            if number == 1 and not rest:
                _refuse_others(piece)
            block = rest + piece
            end = block.rfind(b"\n") + 1
            yield _lines(block, end, number)
            number += block.count(b"\n", 0, end)
            rest = _unfinished(block[end:])
    yield _lines(rest, len(rest), number)


def _refuse_others(head: bytes) -> None:
    kind = "text in UTF-16" if head.startswith(_UTF_16) else archive_kind(head)
    if kind:
        raise ValueError(kind)


def _lines(block: bytes, end: int, number: int) -> Lines:
    find, count = block.find, block.count
    numbers, lines = list[int](), list[bytes]()
    done = 0
    while (start := find(TOKEN, done, end)) >= 0:
        number += count(b"\n", done, start)
        done = find(b"\n", start, end)
        if done < 0:
            done = end
        numbers.append(number)
        lines.append(block[start + len(TOKEN) : done])
    return numbers, lines


def _unfinished(line: bytes) -> bytes:
    """Return what must be kept of the beginning of a line."""
    if len(line) <= _MOST_KEPT:
        return line
    start = line.find(TOKEN)
    # A token may begin at the very end.
    return line[1 - len(TOKEN) :] if start < 0 else line[start : start + _MOST_KEPT]
