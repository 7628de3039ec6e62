"""Find and read logs that MLPerf published, as leniently as its own checker did.

Logs of this suite are read by `suite.logs.reader`, which is strict.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, visible
from suite.logs.reader import FILE_CAP_BYTES, LINE_CAP_CHARACTERS, Entry, Log
from suite.logs.strict_json import DEPTH_CAP, depth, exists, read_bounded, reason
from suite.logs.writer import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Absent", "find_published_logs", "read_published_log"]

_TOKEN: Final = TOKEN.strip().encode()
_MOST_SHOWN: Final = 10  # lines that cannot be read, before the others are only counted
_TIME_CAP_MS: Final = 2**63
_DECODER: Final = json.JSONDecoder()
_REMEDY: Final = "log with an MLPerf logger, and let no two processes write into one line"


class Absent(enum.Enum):
    """The value of a line that has none, which is not the same as null."""

    ABSENT = "no value"

    def __repr__(self) -> str:
        return str(self.value)


def find_published_logs(path: Path) -> list[tuple[str, Path]]:
    """Return every log at or below ``path``, each with the name to show, in order.

    A folder is searched for MLPerf's layout ``<org>/results/<system>/<benchmark>/result_*.txt``.
    Names begin at ``path``, or at the organisation where ``path`` is inside of it.
    """
    if not exists(path):
        return []
    if path.is_file():
        return [(visible(str(path)), path)]
    top = path.resolve()
    found = [
        file
        for file in top.rglob("result_*.txt")
        if len(file.parts) > 5 and file.parts[-4] == "results"
    ]
    found.sort(key=lambda file: (file.parent, len(file.name), file.name))
    return [
        (visible(str(file.relative_to(min(top, file.parents[4], key=_length)))), file)
        for file in found
    ]


def read_published_log(path: Path, name: str) -> Log:
    """Read the log at ``path`` and call it ``name``; never raises for what the file contains."""
    log = Log(name)
    try:
        content = read_bounded(path, FILE_CAP_BYTES)
    except (OSError, ValueError) as error:
        expected = "a regular file of at most 64 MiB"
        log.findings.append(
            Finding("log.file", expected, reason(error), "publish the log itself", name)
        )
        return log
    wrong = 0
    for line, payload in _payloads(content):
        try:
            log.entries.append(_entry(payload, line))
        except ValueError as error:
            wrong += 1
            if wrong <= _MOST_SHOWN:
                log.findings.append(_unreadable(name, line, str(error)))
    if wrong > _MOST_SHOWN:
        log.findings.append(_unreadable(name, None, f"{wrong} lines that are not"))
    return log


def _length(path: Path) -> int:
    return len(path.parts)


def _payloads(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield line number and JSON text of each MLLOG line, without what stands before the token."""
    line, counted = 1, 0
    while (token := content.find(_TOKEN, counted)) >= 0:
        line += content.count(b"\n", counted, token)
        counted = content.find(b"\n", token)
        if counted < 0:
            counted = len(content)
        # What follows a carriage return, as in a progress bar, is a line to the checker too.
        for part in content[token:counted].split(b"\r"):
            _, found, payload = part.partition(_TOKEN)
            if found:
                yield line, payload.decode("latin-1")


def _entry(payload: str, line: int) -> Entry:
    if len(payload) > LINE_CAP_CHARACTERS:
        raise ValueError(f"{len(payload)} characters")
    if payload.count("[") + payload.count("{") > DEPTH_CAP and depth(payload) > DEPTH_CAP:
        raise ValueError(f"nesting deeper than {DEPTH_CAP}")
    try:
        fields = _DECODER.decode(payload)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno} after the token") from error
    if not isinstance(fields, dict):
        raise ValueError("JSON that is not an object")  # noqa: TRY004 - wrong text, not a wrong argument
    key, time_ms, metadata = fields.get("key"), fields.get("time_ms"), fields.get("metadata")
    if not isinstance(key, str):
        raise ValueError(f"key = {key!r:.80}, which is no text")  # noqa: TRY004 - as above
    if not isinstance(time_ms, int | float) or not -_TIME_CAP_MS < time_ms < _TIME_CAP_MS:
        raise ValueError(f"time_ms = {time_ms!r:.80}, which is no time")
    return Entry(
        line,
        int(time_ms),
        str(fields.get("event_type", "")),
        key,
        fields.get("value", Absent.ABSENT),
        metadata if isinstance(metadata, dict) else {},
    )


def _unreadable(name: str, line: int | None, found: str) -> Finding:
    return Finding(
        "mlperf.line",
        "one JSON object with key and time_ms after :::MLLOG",
        found,
        _REMEDY,
        name,
        line,
    )
