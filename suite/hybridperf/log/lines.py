"""Find the ``:::MLLOG`` lines of a file in chunks, with memory independent of the file size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.log.writer import TOKEN as WRITTEN
from hybridperf.untrusted import LINE_CAP_BYTES, LOG_CAP_BYTES, archive_kind, open_bounded

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["A_LOG", "PUT_IT_THERE", "TOKEN", "mllog_lines"]

TOKEN: Final = WRITTEN.strip().encode()
A_LOG: Final = "a log: a text file of at most 64 MiB with :::MLLOG lines"
PUT_IT_THERE: Final = "put the log there as uncompressed UTF-8 text that you may read"
_PIECE_BYTES: Final = 2**20
_MOST_KEPT: Final = len(TOKEN) + 1 + LINE_CAP_BYTES + 2  # a maximal line, its \r and one byte
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")  #: byte order marks

Lines = tuple[list[int], list[bytes]]  #: line numbers, counted from 1, and their payloads


def mllog_lines(
    path: Path, digest: hashlib._Hash | None = None, token: bytes = TOKEN
) -> Iterator[Lines]:
    """Yield, per chunk of the file, the line numbers and payloads of its ``:::MLLOG`` lines.

    A payload is the text after the first ``token`` of a line; lines without one are skipped.
    Payloads longer than `LINE_CAP_BYTES` are truncated, but remain longer than that. ``digest`` is
    updated with the whole file.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it is not a regular file, is larger than `LOG_CAP_BYTES`, or is not text.
    """
    number, rest = 1, b""
    with open_bounded(path, LOG_CAP_BYTES) as file:
        while piece := file.read(_PIECE_BYTES):
            if digest is not None:
                digest.update(piece)
            if number == 1 and not rest:
                _refuse_others(piece)
            block = rest + piece
            end = block.rfind(b"\n") + 1
            yield _lines(block, end, number, token)
            number += block.count(b"\n", 0, end)
            rest = _unfinished(block[end:], token)
    yield _lines(rest, len(rest), number, token)


def _refuse_others(head: bytes) -> None:
    kind = "text in UTF-16" if head.startswith(_UTF_16) else archive_kind(head)
    if kind:
        raise ValueError(kind)


def _lines(block: bytes, end: int, number: int, token: bytes) -> Lines:
    find, count = block.find, block.count
    numbers, lines = list[int](), list[bytes]()
    done = 0
    while (start := find(token, done, end)) >= 0:
        number += count(b"\n", done, start)
        done = find(b"\n", start, end)
        if done < 0:
            done = end
        numbers.append(number)
        lines.append(block[start + len(token) : done])
    return numbers, lines


def _unfinished(line: bytes, token: bytes) -> bytes:
    """Return the part of an incomplete line to keep for the next chunk."""
    if len(line) <= _MOST_KEPT:
        return line
    start = line.find(token)
    # The end may hold the beginning of a token.
    return line[1 - len(token) :] if start < 0 else line[start : start + _MOST_KEPT]
