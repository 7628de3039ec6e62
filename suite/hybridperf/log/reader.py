"""Read untrusted logs within memory bounds, and report errors as findings.

Logs of this suite are read strictly, published logs as leniently as MLPerf's compliance checker.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from hybridperf.findings import UNREADABLE, Finding, Severity, unreadable, visible
from hybridperf.log.chain import GENESIS, link, split_line
from hybridperf.log.log import KEY_UNITS, OBJECT_UNITS, Budget, Entry, Log
from hybridperf.log.writer import TOKEN
from hybridperf.untrusted import (
    DEPTH_CAP,
    LINE_CAP_BYTES,
    LOG_CAP_BYTES,
    TIME_CAP_MS,
    archive_kind,
    open_bounded,
    parse_object,
    reason,
    refuse_deep,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["A_LOG", "PUT_IT_THERE", "parse_entry", "read_log", "read_published_log"]

A_LOG: Final = "a log: a text file of at most 64 MiB with :::MLLOG lines"
PUT_IT_THERE: Final = "put the log there as uncompressed UTF-8 text that you may read"
_STRICT_TOKEN: Final = TOKEN.strip().encode()
_PUBLISHED_TOKEN: Final = TOKEN.encode()  #: the token of the compliance checker
_PIECE_BYTES: Final = 2**20
_MOST_KEPT: Final = len(_STRICT_TOKEN) + 1 + LINE_CAP_BYTES + 2  # a maximal line, \r, one byte
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")  #: byte order marks
_MOST_SHOWN: Final = 10  # findings reported per rule; further findings are counted
_EVENTS: Final = frozenset({"POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"})
_REMEDY: Final = "use an MLPerf logger, and let one process write each line"
_FIELDS: Final = (
    "key",
    "time_ms",
    "value",
    "metadata",
)  #: fields that the checker reads of every line
_PLAIN_FIELDS: Final = 6
_PLAIN_UNITS: Final = KEY_UNITS * _PLAIN_FIELDS + 2 * OBJECT_UNITS  # without metadata

Lines = tuple[list[int], list[bytes]]  #: line numbers, counted from 1, and their payloads


def read_log(path: Path, budget: Budget | None = None) -> Log:
    """Read a log of this suite strictly, and report errors as findings.

    ``budget`` is shared by all logs of a result.
    """
    return _StrictReader(Log(visible(str(path))), budget).read(path)


def read_published_log(path: Path, name: str, budget: Budget | None = None) -> Log:
    """Read the log at ``path``, displayed as ``name``, as MLPerf's compliance checker does.

    Errors are reported as findings. ``budget`` is shared by all logs of a result.
    """
    return _PublishedReader(Log(name), budget).read(path)


class _Chunk(NamedTuple):
    """Lines of a log, and the units that they take from the budget."""

    numbers: list[int]  #: line numbers, counted from 1
    payloads: list[bytes]  #: the text of each line after the token
    units: list[int]  #: units of each line, as `hybridperf.log.log.Budget` counts
    block: bytes  #: the payloads joined, to search them at once


class _Reader:
    """Parser of a log in chunks of lines."""

    token: bytes
    digest: hashlib._Hash | None = None  #: digest of the whole file

    def __init__(self, log: Log, budget: Budget | None) -> None:
        self.log, self._budget = log, (budget or Budget()).of_log()
        self._counts: Counter[str] = Counter()  # findings by rule

    def read(self, path: Path) -> Log:
        """Return the parsed log at ``path``."""
        try:
            for numbers, payloads in _mllog_lines(path, self.token, self.digest):
                block = b"".join(payloads)
                units = self._budget.take(payloads, block)
                self.take(_Chunk(numbers, payloads, units, block))
        except (OSError, ValueError) as error:
            locked = unreadable(error, self.log.path)
            other = Finding("log.file", A_LOG, reason(error), PUT_IT_THERE, self.log.path)
            self.note(locked or other)
        self.finish()
        return self.log

    def take(self, chunk: _Chunk) -> None:
        """Parse the lines of ``chunk``."""
        raise NotImplementedError

    def note(self, finding: Finding) -> None:
        """Count a finding, and record it if it is among the first of its rule."""
        self._counts[finding.rule] += 1
        if self._counts[finding.rule] <= _MOST_SHOWN:
            self.log.findings.append(finding)

    def finish(self) -> None:
        """Record findings on the whole log."""
        raise NotImplementedError


class _StrictReader(_Reader):
    """Parser of a log of this suite: each line is checked, and its hash followed."""

    token = _STRICT_TOKEN

    def __init__(self, log: Log, budget: Budget | None) -> None:
        super().__init__(log, budget)
        self.digest = self._sha256 = hashlib.sha256()
        self._previous, self._hashes, self._lines = GENESIS, 0, 0
        self._bare: int | None = None  # the first line without a hash

    def take(self, chunk: _Chunk) -> None:
        """Parse the lines of ``chunk`` one by one."""
        for number, line in zip(chunk.numbers, chunk.payloads, strict=True):
            self._lines += 1
            text = self._text(number, line)
            self._follow_chain(number, text)
            if text is None:
                continue
            try:
                self.log.entries.append(parse_entry(text, number))
            except ValueError as error:
                self._wrong("log.line", number, "one JSON object of an MLLOG line", str(error))

    def _text(self, number: int, line: bytes) -> str | None:
        if len(line) > LINE_CAP_BYTES:
            expected = f"lines of at most {LINE_CAP_BYTES} bytes"
            self._wrong("log.line", number, expected, "a longer one")
            return None
        try:
            return line.strip().decode()
        except UnicodeDecodeError as error:
            self._wrong("log.line", number, "UTF-8 text", str(error))
            return None

    def _follow_chain(self, number: int, text: str | None) -> None:
        parts = None if text is None else split_line(text)
        if parts is None:
            self._bare = number if self._bare is None else self._bare
            return
        self._hashes += 1
        body, digest = parts
        if link(self._previous, body) != digest:
            self._wrong(
                "log.chain",
                number,
                "a line whose hash follows from the lines before it",
                "a line that was edited, or follows one that was removed or inserted",
                "never edit a log; run again",
            )
        self._previous = digest

    def _wrong(
        self, rule: str, line: int | None, expected: str, found: str, remedy: str = "run again"
    ) -> None:
        self.note(Finding(rule, expected, found, remedy, self.log.path, line))

    def finish(self) -> None:
        """Count further findings, and set the hashes of the log."""
        log = self.log
        if self._hashes not in (0, self._lines):
            found = f"{self._hashes} of {self._lines} lines"
            self._wrong("log.chain", self._bare, "a hash on every line", found)
        for rule, count in self._counts.items():
            if count > _MOST_SHOWN:
                found = f"{count}, {_MOST_SHOWN} shown"
                log.findings.append(Finding(rule, "no such line", found, "run again", log.path))
        log.last_hash = self._previous if self._hashes else ""
        unread = self._counts["log.file"] or self._counts[UNREADABLE]
        log.sha256 = "" if unread else self._sha256.hexdigest()
        log.chained = self._lines == self._hashes > 0 and not self._counts["log.chain"]


def parse_entry(text: str, line: int) -> Entry:
    """Parse the JSON object of one log line.

    Raises:
        ValueError: if it is malformed.
    """
    entry = parse_object(text)
    kinds = {"time_ms": int, "event_type": str, "key": str, "metadata": dict}
    for name, kind in kinds.items():
        if type(entry.get(name)) is not kind:
            raise ValueError(
                f"{name} = {entry.get(name)!r:.80}, which is not of type {kind.__name__}"
            )
    if entry["event_type"] not in _EVENTS:
        raise ValueError(f"event_type {entry['event_type']!r:.80}")
    time_ms: int = entry["time_ms"]  # type: ignore[assignment]  # checked above
    if not 0 <= time_ms <= TIME_CAP_MS:
        raise ValueError(f"time_ms = {time_ms}, which is not a time from 1970 to 9999")
    return Entry(
        key=str(entry["key"]),
        time_ms=time_ms,
        event_type=str(entry["event_type"]),
        value=entry.get("value"),
        metadata=entry["metadata"],  # type: ignore[arg-type]  # checked above
        line=line,
    )


class _PlainEntry(Entry, kw_only=True, rename={"line": "line number, which no log gives"}):
    """An entry in the format of the MLPerf loggers."""

    time_ms: Annotated[int, msgspec.Meta(ge=-TIME_CAP_MS, le=TIME_CAP_MS)]
    line: int = 0


_DECODE: Final = msgspec.json.Decoder(_PlainEntry).decode


class _PublishedReader(_Reader):
    """Parser of a published log: in one batch where all lines of a chunk are regular."""

    token = _PUBLISHED_TOKEN

    def take(self, chunk: _Chunk) -> None:
        """Parse the lines of ``chunk``: in one batch if all are regular, else one by one."""
        try:
            entries = self._plain(chunk)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            self._take_each(chunk)
        else:
            self.log.entries += entries

    def _plain(self, chunk: _Chunk) -> list[_PlainEntry]:
        numbers, payloads, units, block = chunk
        # List comprehensions, not one loop: this code dominates the time of checking a round.
        if max(map(len, payloads), default=0) > LINE_CAP_BYTES or (
            b"\r" in block and [1 for line in payloads if line.find(b"\r", 0, -1) >= 0]
        ):
            raise ValueError
        entries = [_DECODE(line) for line in payloads]
        unusual = []
        for entry, number, line, weight in zip(entries, numbers, payloads, units, strict=True):
            entry.line = number
            # As many colons as keys and no array imply neither duplicate keys nor nesting.
            if weight != _PLAIN_UNITS + KEY_UNITS * len(entry.metadata):
                unusual.append((line, entry, number))
        if [1 for line, _, _ in unusual if _may_be_deep(line) or _PUBLISHED_TOKEN in line]:
            raise ValueError
        for line, entry, number in unusual:
            colons, value = line.count(b":"), entry.value
            shallow = len(value) if isinstance(value, dict) else 0
            if colons == _PLAIN_FIELDS + len(entry.metadata) + shallow:
                continue
            if colons != _PLAIN_FIELDS + _keys(entry.metadata) + _keys(value):
                self._look_twice(line, number)
        return entries

    def _take_each(self, chunk: _Chunk) -> None:
        for number, line in zip(chunk.numbers, chunk.payloads, strict=True):
            for payload in _parts(line):
                try:
                    entry = _entry(payload, number)
                except ValueError as error:
                    self.note(_unreadable(self.log.path, number, str(error)))
                else:
                    if entry is not None:
                        self.log.entries.append(entry)
                    self._look_twice(payload, number)

    def _look_twice(self, payload: bytes, line: int) -> None:
        """Warn of duplicate keys in an object of the line; the checker uses the last value."""
        try:
            json.loads(_text(payload), object_pairs_hook=_once)
        except _DuplicateError as error:
            expected, found = "JSON without duplicate keys", str(error)
            self.note(
                Finding(
                    "mlperf.fields",
                    expected,
                    found,
                    _REMEDY,
                    self.log.path,
                    line,
                    Severity.WARNING,
                )
            )

    def finish(self) -> None:
        """Count further lines that cannot be read."""
        if (count := self._counts["mlperf.line"]) > _MOST_SHOWN:
            found = f"{count} lines that are not"
            self.log.findings.append(_unreadable(self.log.path, None, found))


def _may_be_deep(payload: bytes) -> bool:
    return payload.count(b"{") + payload.count(b"[") > DEPTH_CAP


def _keys(value: object) -> int:
    """Return the total number of keys of all objects in ``value``."""
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def _parts(line: bytes) -> Iterator[bytes]:
    """Yield the JSON texts of a line, without the text before the last token.

    Like the checker, treat a carriage return, as in progress bars, as the end of a line.
    """
    for number, part in enumerate(line.split(b"\r")):
        if _PUBLISHED_TOKEN in part:
            yield part.rpartition(_PUBLISHED_TOKEN)[2]
        elif not number:
            yield part


def _entry(payload: bytes, line: int) -> Entry | None:
    """Parse a line that is not in the loggers' format; None if its key is not text.

    Like the checker, decode it as latin-1, and accept NaN and infinity as values.

    Raises:
        ValueError: if it is malformed, or its time is not one.
    """
    if len(payload) > LINE_CAP_BYTES:
        raise ValueError(f"more than {LINE_CAP_BYTES} bytes")
    text = _text(payload)
    refuse_deep(text)
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        what = f"{error.msg.removesuffix(' at')} at column {error.colno} after the token"
        raise ValueError(f"invalid JSON: {what}") from error
    except ValueError as error:
        raise ValueError("a number out of range") from error
    if not isinstance(fields, dict):
        raise ValueError("JSON that is not an object")  # noqa: TRY004 - wrong text, not a wrong argument
    if missing := [name for name in _FIELDS if name not in fields]:
        raise ValueError(f"no {missing[0]}")
    key, time_ms = fields["key"], fields["time_ms"]
    plain = isinstance(time_ms, int | float) and not isinstance(time_ms, bool)
    if not plain or not -TIME_CAP_MS <= time_ms <= TIME_CAP_MS:
        raise ValueError(f"time_ms = {time_ms!r:.80}, which is not a time")
    event, metadata = fields.get("event_type"), fields["metadata"]
    return (
        Entry(
            key=key,
            time_ms=int(time_ms),
            event_type=event if isinstance(event, str) else "",
            value=fields["value"],
            metadata=metadata if isinstance(metadata, dict) else {},
            line=line,
        )
        if isinstance(key, str)
        else None
    )


class _DuplicateError(Exception):
    """A key occurs twice in an object."""


def _once(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _DuplicateError("a duplicate key in one object")


def _text(payload: bytes) -> str:
    """Return the text of a line without the white space that latin-1 has at its ends."""
    stripped = payload.decode("latin-1").strip().encode("latin-1")
    try:
        return stripped.decode()
    except UnicodeDecodeError:
        return stripped.decode("latin-1")


def _unreadable(name: str, line: int | None, found: str) -> Finding:
    return Finding(
        "mlperf.line",
        "one JSON object with key, value, time_ms and metadata after :::MLLOG",
        found,
        _REMEDY,
        name,
        line,
    )


def _mllog_lines(path: Path, token: bytes, digest: hashlib._Hash | None) -> Iterator[Lines]:
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
