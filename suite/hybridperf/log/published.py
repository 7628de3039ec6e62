"""Read a published MLPerf log as leniently as MLPerf's compliance checker.

Logs of this suite are read by the strict `hybridperf.log.reader`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from hybridperf.findings import Finding, Severity, unreadable
from hybridperf.log.lines import A_LOG, PUT_IT_THERE, TOKEN, mllog_lines
from hybridperf.log.log import KEY_UNITS, OBJECT_UNITS, Budget, Entry, Log, LogBudget
from hybridperf.untrusted import (
    DEPTH_CAP,
    LINE_CAP_BYTES,
    TIME_CAP_MS,
    reason,
    refuse_deep,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["read_published_log"]

_MOST_SHOWN: Final = 10  # unreadable lines reported; further ones are counted
_REMEDY: Final = "use an MLPerf logger, and let one process write each line"


class _PlainEntry(Entry, kw_only=True, rename={"line": "line number, which no log gives"}):
    """An entry in the format of the MLPerf loggers."""

    time_ms: Annotated[int, msgspec.Meta(ge=-TIME_CAP_MS, le=TIME_CAP_MS)]
    line: int = 0


_PLAIN_FIELDS: Final = 6
_PLAIN_UNITS: Final = KEY_UNITS * _PLAIN_FIELDS + 2 * OBJECT_UNITS  # without metadata


_DECODE: Final = msgspec.json.Decoder(_PlainEntry).decode
_TOKEN: Final = TOKEN + b" "  #: what the checker looked for
_FIELDS: Final = ("key", "time_ms", "value", "metadata")  #: that the checker read of every line


def read_published_log(path: Path, name: str, budget: Budget | None = None) -> Log:
    """Read the log at ``path``, displayed as ``name``, and report errors as findings.

    ``budget`` is that of all logs of a result together.
    """
    reader = _Reader(Log(name), (budget or Budget()).of_log())
    try:
        for numbers, payloads in mllog_lines(path, token=_TOKEN):
            reader.take(numbers, payloads)
    except (OSError, ValueError) as error:
        locked = unreadable(error, name)
        other = Finding("log.file", A_LOG, reason(error), PUT_IT_THERE, name)
        reader.log.findings.append(locked or other)
    return reader.finish()


class _Reader:
    """Parser of a log in chunks of lines."""

    def __init__(self, log: Log, budget: LogBudget) -> None:
        self.log, self._budget = log, budget
        self._wrong = self._ambiguous = 0

    def take(self, numbers: list[int], payloads: list[bytes]) -> None:
        """Parse ``payloads``: in one batch if all are regular, else one by one.

        Raises:
            TooMuchError: if the logs exceed the budget.
        """
        block = b"".join(payloads)  # to look for what is seldom at once
        units = self._budget.take(payloads, block)
        try:
            entries = self._plain(numbers, payloads, units, block)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            self._take_each(numbers, payloads)
        else:
            self.log.entries += entries

    def _plain(
        self, numbers: list[int], payloads: list[bytes], units: list[int], block: bytes
    ) -> list[_PlainEntry]:
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
        if [1 for line, _, _ in unusual if _may_be_deep(line) or _TOKEN in line]:
            raise ValueError
        for line, entry, number in unusual:
            colons, value = line.count(b":"), entry.value
            shallow = len(value) if isinstance(value, dict) else 0
            if colons == _PLAIN_FIELDS + len(entry.metadata) + shallow:
                continue
            if colons != _PLAIN_FIELDS + _keys(entry.metadata) + _keys(value):
                self._look_twice(line, number)
        return entries

    def _take_each(self, numbers: list[int], payloads: list[bytes]) -> None:
        for number, line in zip(numbers, payloads, strict=True):
            for payload in _parts(line):
                try:
                    entry = _entry(payload, number)
                except ValueError as error:
                    self._wrong += 1
                    if self._wrong <= _MOST_SHOWN:
                        self.log.findings.append(_unreadable(self.log.path, number, str(error)))
                else:
                    if entry is not None:
                        self.log.entries.append(entry)
                    self._look_twice(payload, number)

    def _look_twice(self, payload: bytes, line: int) -> None:
        """Warn of duplicate keys in an object of the line; the checker used the last one."""
        try:
            json.loads(_text(payload), object_pairs_hook=_once)
        except _DuplicateError as error:
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
        if _TOKEN in part:
            yield part.rpartition(_TOKEN)[2]
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
