"""Read a log of unknown origin: bounded, strict, and total: what is wrong becomes a finding."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from suite.findings import Finding, visible
from suite.logs.chain import GENESIS, link, split_line
from suite.logs.writer import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Entry", "Log", "parse_entry", "read_log"]

FILE_CAP_BYTES: Final = 64 * 2**20
LINE_CAP_CHARACTERS: Final = 64 * 2**10
DEPTH_CAP: Final = 16
_EVENTS: Final = frozenset({"POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"})
_OUTSIDE_STRINGS: Final = re.compile(r'"(?:[^"\\]|\\.)*"')


@dataclass(frozen=True, slots=True)
class Entry:
    """One log line."""

    line: int  #: counted from 1
    time_ms: int
    event_type: str
    key: str
    value: object
    metadata: dict[str, object]


@dataclass(slots=True)
class Log:
    """What a log says, and what is wrong with how it says it."""

    path: str
    entries: list[Entry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    chained: bool = False  #: every line carries a hash and every hash is right

    def all(self, key: str) -> list[Entry]:
        """Return the entries with ``key``, in file order."""
        return [entry for entry in self.entries if entry.key == key]

    def first(self, key: str) -> Entry | None:
        """Return the first entry with ``key``, or None."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def value(self, key: str) -> object:
        """Return the value of the last entry with ``key``, or None."""
        entry = next((entry for entry in reversed(self.entries) if entry.key == key), None)
        return None if entry is None else entry.value


def read_log(path: Path) -> Log:
    """Read the log at ``path``; never raises for what the file contains."""
    log = Log(visible(str(path)))
    try:
        content = _content(path)
    except (OSError, ValueError) as error:
        log.findings.append(
            _finding(log, None, "log.file", "a regular file of at most 64 MiB", str(error))
        )
        return log
    previous, hashes, lines = GENESIS, 0, 0
    for number, line in _lines(log, content):
        lines += 1
        parts = split_line(line)
        if parts is not None:
            hashes += 1
            body, digest = parts
            if link(previous, body) != digest:
                log.findings.append(
                    _finding(
                        log,
                        number,
                        "log.chain",
                        "a line whose hash follows from the lines before it",
                        "a line that was edited, or follows one that was removed or inserted",
                        "never edit a log; run again",
                    )
                )
            previous = digest
        try:
            log.entries.append(parse_entry(line, number))
        except ValueError as error:
            log.findings.append(
                _finding(log, number, "log.line", "one JSON object of an MLLOG line", str(error))
            )
    if hashes not in (0, lines):
        log.findings.append(
            _finding(log, None, "log.chain", "a hash on every line", f"{hashes} of {lines} lines")
        )
    log.chained = lines == hashes > 0 and not any(f.rule == "log.chain" for f in log.findings)
    return log


def parse_entry(text: str, line: int) -> Entry:
    """Read the JSON object of one log line.

    Raises:
        ValueError: saying what is wrong with it.
    """
    if _depth(text) > DEPTH_CAP:
        raise ValueError(f"nesting deeper than {DEPTH_CAP}")
    try:
        entry = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_short_int
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from error
    if not isinstance(entry, dict):
        raise ValueError("JSON that is not an object")  # noqa: TRY004 - one kind of error for one kind of reader
    kinds = {"time_ms": int, "event_type": str, "key": str, "metadata": dict}
    for name, kind in kinds.items():
        if type(entry.get(name)) is not kind:
            raise ValueError(f"{name} = {entry.get(name)!r:.80}, which is no {kind.__name__}")
    if entry["event_type"] not in _EVENTS:
        raise ValueError(f"event_type {entry['event_type']!r:.80}")
    if not _finite(entry.get("value")):
        raise ValueError("a number too large to be one")
    return Entry(
        line, entry["time_ms"], entry["event_type"], entry["key"], entry.get("value"), entry["metadata"]
    )


def _content(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("something that is not a regular file")
        if status.st_size > FILE_CAP_BYTES:
            raise ValueError(f"{status.st_size} bytes")
        return file.read(FILE_CAP_BYTES)


def _lines(log: Log, content: bytes) -> Iterator[tuple[int, str]]:
    """Yield number and JSON text of each MLLOG line; other output between them is ignored."""
    token = TOKEN.strip().encode()
    for number, raw in enumerate(content.split(b"\n"), start=1):
        _, found, payload = raw.partition(token)
        if not found:
            continue
        if len(payload) > LINE_CAP_CHARACTERS:
            expected = f"lines of at most {LINE_CAP_CHARACTERS} bytes"
            log.findings.append(_finding(log, number, "log.line", expected, f"{len(payload)} bytes"))
            continue
        try:
            yield number, payload.strip().decode()
        except UnicodeDecodeError as error:
            log.findings.append(_finding(log, number, "log.line", "UTF-8 text", str(error)))


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in _OUTSIDE_STRINGS.sub("", text):
        if char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key that stands twice in one object")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name}, which is no JSON number")


def _short_int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("a number too large to be one")
    return int(digits)


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    return not isinstance(value, list) or all(_finite(item) for item in value)


def _finding(
    log: Log, line: int | None, rule: str, expected: str, found: str, remedy: str = "run again"
) -> Finding:
    return Finding(rule, expected, found, remedy, path=log.path, line=line)
