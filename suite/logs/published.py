"""Read a log that MLPerf published, as leniently as its own checker did.

Logs of this suite are read by `suite.logs.reader`, which is strict.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from suite.findings import Finding, Severity
from suite.logs.lines import A_LOG, PUT_IT_THERE, TOKEN, mllog_lines
from suite.logs.log import KEY_UNITS, LINE_CAP_BYTES, OBJECT_UNITS, Budget, Entry, Log
from suite.logs.strict_json import DEPTH_CAP, depth, parse_object, reason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Absent", "read_published_log"]

_MOST_SHOWN: Final = 10  # lines that cannot be read, before the others are only counted
_TIME_CAP_MS: Final = 2**53
_REMEDY: Final = "log with an MLPerf logger, and let no two processes write into one line"


class Absent(enum.Enum):
    """The value of a line that has none, which is not the same as null."""

    ABSENT = "no value"

    def __repr__(self) -> str:
        return str(self.value)


class _PlainEntry(Entry, kw_only=True, rename={"line": "line number, which no log gives"}):
    """An entry as every MLPerf logger writes it."""

    namespace: str
    time_ms: Annotated[int, msgspec.Meta(ge=-_TIME_CAP_MS, le=_TIME_CAP_MS)]
    line: int = 0


_PLAIN_FIELDS: Final = 6
_PLAIN_UNITS: Final = KEY_UNITS * _PLAIN_FIELDS + 2 * OBJECT_UNITS  # beside those of metadata


class _OddEntry(Entry, rename={"line": "line number, which no log gives"}):
    """An entry that the checker took too."""

    time_ms: int | float  # type: ignore[assignment]  # until it is put right
    event_type: object = ""  # type: ignore[assignment]  # as above
    value: object = Absent.ABSENT
    metadata: object = None  # type: ignore[assignment]  # as above
    line: int = 0


_DECODE: Final = msgspec.json.Decoder(_PlainEntry).decode
_DECODE_ODD: Final = msgspec.json.Decoder(_OddEntry).decode


def read_published_log(path: Path, name: str, budget: Budget | None = None) -> Log:
    """Read the log at ``path`` and call it ``name``; never raises for what the file contains.

    ``budget`` is that of the logs which are kept together, where there are several.
    """
    reader = _Reader(Log(name), budget or Budget())
    try:
        for numbers, payloads in mllog_lines(path):
            reader.take(numbers, payloads)
    except (OSError, ValueError) as error:
        reader.log.findings.append(Finding("log.file", A_LOG, reason(error), PUT_IT_THERE, name))
    return reader.finish()


class _Reader:
    """Take the lines of a log piece by piece."""

    def __init__(self, log: Log, budget: Budget) -> None:
        self.log, self._budget = log, budget
        self._wrong = self._ambiguous = 0

    def take(self, numbers: list[int], payloads: list[bytes]) -> None:
        """Read some lines: all at once where each is plain, else one by one.

        Raises:
            TooMuchError: where the log holds more than is read of any.
        """
        units = self._budget.take(payloads)
        try:
            entries = self._plain(numbers, payloads, units)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            self._take_each(numbers, payloads)
        else:
            self.log.entries += entries

    def _plain(
        self, numbers: list[int], payloads: list[bytes], units: list[int]
    ) -> list[_PlainEntry]:
        # Lists, not one loop: this is where the time of checking a round goes.
        if max(map(len, payloads), default=0) > LINE_CAP_BYTES or [
            1 for line in payloads if line.find(b"\r", 0, -1) >= 0
        ]:
            raise ValueError
        entries = [_DECODE(line) for line in payloads]
        unusual = []
        for entry, number, line, weight in zip(entries, numbers, payloads, units, strict=True):
            entry.line = number
            # As many colons as keys, and no array: then no key stands twice, and nothing nests.
            if weight != _PLAIN_UNITS + KEY_UNITS * len(entry.metadata):
                unusual.append((line, entry, number))
        if [1 for line, _, _ in unusual if _may_be_deep(line) or TOKEN in line]:
            raise ValueError
        for line, entry, number in unusual:
            if line.count(b":") != _PLAIN_FIELDS + _keys(entry.metadata) + _keys(entry.value):
                self._look_twice(line, number)
        return entries

    def _take_each(self, numbers: list[int], payloads: list[bytes]) -> None:
        for number, line in zip(numbers, payloads, strict=True):
            for payload in _parts(line):
                try:
                    self.log.entries.append(self._entry(payload, number))
                except ValueError as error:
                    self._wrong += 1
                    if self._wrong <= _MOST_SHOWN:
                        self.log.findings.append(_unreadable(self.log.path, number, str(error)))
                else:
                    self._look_twice(payload, number)

    def _entry(self, payload: bytes, line: int) -> Entry:
        if len(payload) > LINE_CAP_BYTES:
            raise ValueError(f"more than {LINE_CAP_BYTES} bytes")
        if _may_be_deep(payload) and depth(payload.decode("latin-1")) > DEPTH_CAP:
            raise ValueError(f"nesting deeper than {DEPTH_CAP}")
        try:
            entry = _decode_odd(payload)
        except msgspec.MsgspecError as error:
            raise ValueError(_explained(payload)) from error
        if not -_TIME_CAP_MS <= entry.time_ms <= _TIME_CAP_MS:
            raise ValueError(f"time_ms = {entry.time_ms!r:.80}, which is no time")
        return Entry(
            key=entry.key,
            time_ms=int(entry.time_ms),
            event_type=entry.event_type if isinstance(entry.event_type, str) else "",
            value=entry.value,
            metadata=entry.metadata if isinstance(entry.metadata, dict) else {},
            line=line,
        )

    def _look_twice(self, payload: bytes, line: int) -> None:
        """Warn where an object of the line has a key twice: the checker took the last."""
        try:
            parse_object(payload.decode("latin-1"))
        except ValueError as error:
            self._ambiguous += 1
            if self._ambiguous <= _MOST_SHOWN:
                expected = "JSON that says one thing"
                self.log.findings.append(
                    Finding(
                        "mlperf.fields",
                        expected,
                        str(error),
                        _REMEDY,
                        self.log.path,
                        line,
                        Severity.WARNING,
                    )
                )

    def finish(self) -> Log:
        """Return the log."""
        if self._wrong > _MOST_SHOWN:
            found = f"{self._wrong} lines that are not"
            self.log.findings.append(_unreadable(self.log.path, None, found))
        return self.log


def _may_be_deep(payload: bytes) -> bool:
    return payload.count(b"{") + payload.count(b"[") > DEPTH_CAP


def _keys(value: object) -> int:
    """Return how many keys the objects in ``value`` have in all."""
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    return sum(map(_keys, value)) if isinstance(value, list) else 0


def _parts(line: bytes) -> Iterator[bytes]:
    """Yield the JSON texts of a line, without what stands before the last token.

    What follows a carriage return, as in a progress bar, is a line to the checker too.
    """
    for number, part in enumerate(line.split(b"\r")):
        if TOKEN in part:
            yield part.rpartition(TOKEN)[2]
        elif not number:
            yield part


def _decode_odd(payload: bytes) -> _OddEntry:
    try:
        return _DECODE_ODD(payload)
    except UnicodeDecodeError:  # the checker read every byte as latin-1
        return _DECODE_ODD(payload.decode("latin-1").encode())


def _explained(payload: bytes) -> str:
    """Return why a line could not be read, in words for who wrote it."""
    try:
        fields = json.loads(payload.decode("latin-1"))
    except json.JSONDecodeError as error:
        return f"no JSON: {error.msg.removesuffix(' at')} at column {error.colno} after the token"
    except ValueError:
        return "a number too large to be one"
    if not isinstance(fields, dict):
        return "JSON that is not an object"
    key, time_ms = fields.get("key"), fields.get("time_ms")
    if not isinstance(key, str):
        return f"key = {key!r:.80}, which is no text"
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float):
        return f"time_ms = {time_ms!r:.80}, which is no time"
    return "a number that is none, or too large to be one"


def _unreadable(name: str, line: int | None, found: str) -> Finding:
    return Finding(
        "mlperf.line",
        "one JSON object with key and time_ms after :::MLLOG",
        found,
        _REMEDY,
        name,
        line,
    )
