"""Read a published MLPerf log as leniently as MLPerf's compliance checker.

Logs of this suite are read by the strict `hybridperf.log.reader`.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from hybridperf.findings import Finding, Severity
from hybridperf.log.lines import A_LOG, PUT_IT_THERE, TOKEN, mllog_lines
from hybridperf.log.log import KEY_UNITS, OBJECT_UNITS, Budget, Entry, Log
from hybridperf.untrusted import (
    DEPTH_CAP,
    LINE_CAP_BYTES,
    TIME_CAP_MS,
    depth,
    parse_object,
    reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Absent", "read_published_log"]

_MOST_SHOWN: Final = 10  # unreadable lines reported; further ones are counted
_REMEDY: Final = "use an MLPerf logger, and let one process write each line"


class Absent(enum.Enum):
    """The value of a line without a ``value`` field, as distinct from null."""

    ABSENT = "no value"

    def __repr__(self) -> str:
        return str(self.value)


class _PlainEntry(Entry, kw_only=True, rename={"line": "line number, which no log gives"}):
    """An entry in the format of the MLPerf loggers."""

    namespace: str
    time_ms: Annotated[int, msgspec.Meta(ge=-TIME_CAP_MS, le=TIME_CAP_MS)]
    line: int = 0


_PLAIN_FIELDS: Final = 6
_PLAIN_UNITS: Final = KEY_UNITS * _PLAIN_FIELDS + 2 * OBJECT_UNITS  # without metadata


class _OddEntry(Entry, rename={"line": "line number, which no log gives"}):
    """An entry with irregular types, which the checker also accepted."""

    time_ms: int | float  # type: ignore[assignment]  # normalised later
    event_type: object = ""  # type: ignore[assignment]  # as above
    value: object = Absent.ABSENT
    metadata: object = None  # type: ignore[assignment]  # as above
    line: int = 0


_DECODE: Final = msgspec.json.Decoder(_PlainEntry).decode
_DECODE_ODD: Final = msgspec.json.Decoder(_OddEntry).decode


def read_published_log(path: Path, name: str, budget: Budget | None = None) -> Log:
    """Read the log at ``path``, displayed as ``name``, and report errors as findings.

    ``budget`` is shared by all logs of a result.
    """
    reader = _Reader(Log(name), budget or Budget())
    try:
        for numbers, payloads in mllog_lines(path):
            reader.take(numbers, payloads)
    except (OSError, ValueError) as error:
        reader.log.findings.append(Finding("log.file", A_LOG, reason(error), PUT_IT_THERE, name))
    return reader.finish()


class _Reader:
    """Parser of a log in chunks of lines."""

    def __init__(self, log: Log, budget: Budget) -> None:
        self.log, self._budget = log, budget
        self._wrong = self._ambiguous = 0

    def take(self, numbers: list[int], payloads: list[bytes]) -> None:
        """Parse ``payloads``: in one batch if all are regular, else one by one.

        Raises:
            TooMuchError: if the logs exceed the budget.
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
        # List comprehensions, not one loop: this code dominates the time of checking a round.
        if max(map(len, payloads), default=0) > LINE_CAP_BYTES or [
            1 for line in payloads if line.find(b"\r", 0, -1) >= 0
        ]:
            raise ValueError
        entries = [_DECODE(line) for line in payloads]
        unusual = []
        for entry, number, line, weight in zip(entries, numbers, payloads, units, strict=True):
            entry.line = number
            # As many colons as keys and no array imply neither duplicate keys nor nesting.
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
        if not -TIME_CAP_MS <= entry.time_ms <= TIME_CAP_MS:
            raise ValueError(f"time_ms = {entry.time_ms!r:.80}, which is not a time")
        return Entry(
            key=entry.key,
            time_ms=int(entry.time_ms),
            event_type=entry.event_type if isinstance(entry.event_type, str) else "",
            value=entry.value,
            metadata=entry.metadata if isinstance(entry.metadata, dict) else {},
            line=line,
        )

    def _look_twice(self, payload: bytes, line: int) -> None:
        """Warn of duplicate keys in an object of the line; the checker used the last one."""
        try:
            parse_object(payload.decode("latin-1"))
        except ValueError as error:
            self._ambiguous += 1
            if self._ambiguous <= _MOST_SHOWN:
                expected = "JSON without duplicate keys"
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
        """Return the parsed log."""
        if self._wrong > _MOST_SHOWN:
            found = f"{self._wrong} lines that are not"
            self.log.findings.append(_unreadable(self.log.path, None, found))
        return self.log


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
        if TOKEN in part:
            yield part.rpartition(TOKEN)[2]
        elif not number:
            yield part


def _decode_odd(payload: bytes) -> _OddEntry:
    try:
        return _DECODE_ODD(payload)
    except UnicodeDecodeError:  # the checker decoded logs as latin-1
        return _DECODE_ODD(payload.decode("latin-1").encode())


def _explained(payload: bytes) -> str:
    """Return the reason why a line cannot be parsed."""
    try:
        fields = json.loads(payload.decode("latin-1"))
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg.removesuffix(' at')} at column {error.colno} after the token"
    except ValueError:
        return "a number out of range"
    if not isinstance(fields, dict):
        return "JSON that is not an object"
    key, time_ms = fields.get("key"), fields.get("time_ms")
    if not isinstance(key, str):
        return f"key = {key!r:.80}, which is not text"
    if isinstance(time_ms, bool) or not isinstance(time_ms, int | float):
        return f"time_ms = {time_ms!r:.80}, which is not a time"
    return "something that is not a number, or one out of range"


def _unreadable(name: str, line: int | None, found: str) -> Finding:
    return Finding(
        "mlperf.line",
        "one JSON object with key and time_ms after :::MLLOG",
        found,
        _REMEDY,
        name,
        line,
    )
