"""Read a log of unknown origin: bounded, strict, and total: what is wrong becomes a finding."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, visible
from suite.logs.chain import GENESIS, link, split_line
from suite.logs.strict_json import parse_object, read_bounded, reason
from suite.logs.writer import TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Entry", "Log", "parse_entry", "read_log"]

FILE_CAP_BYTES: Final = 64 * 2**20
LINE_CAP_CHARACTERS: Final = 64 * 2**10
_EVENTS: Final = frozenset({"POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"})


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
    sha256: str = ""  #: of the file

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
        content = read_bounded(path, FILE_CAP_BYTES)
    except (OSError, ValueError) as error:
        log.findings.append(
            _finding(log, None, "log.file", "a regular file of at most 64 MiB", reason(error))
        )
        return log
    log.sha256 = hashlib.sha256(content).hexdigest()
    previous, hashes, lines = GENESIS, 0, 0
    bare: int | None = None  # the first line without a hash
    for number, line in _lines(log, content):
        lines += 1
        parts = None if line is None else split_line(line)
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
        elif bare is None:
            bare = number
        if line is None:
            continue
        try:
            log.entries.append(parse_entry(line, number))
        except ValueError as error:
            log.findings.append(
                _finding(log, number, "log.line", "one JSON object of an MLLOG line", str(error))
            )
    if hashes not in (0, lines):
        log.findings.append(
            _finding(log, bare, "log.chain", "a hash on every line", f"{hashes} of {lines} lines")
        )
    log.chained = lines == hashes > 0 and not any(f.rule == "log.chain" for f in log.findings)
    return log


def parse_entry(text: str, line: int) -> Entry:
    """Read the JSON object of one log line.

    Raises:
        ValueError: saying what is wrong with it.
    """
    entry = parse_object(text)
    kinds = {"time_ms": int, "event_type": str, "key": str, "metadata": dict}
    for name, kind in kinds.items():
        if type(entry.get(name)) is not kind:
            raise ValueError(f"{name} = {entry.get(name)!r:.80}, which is no {kind.__name__}")
    if entry["event_type"] not in _EVENTS:
        raise ValueError(f"event_type {entry['event_type']!r:.80}")
    return Entry(
        line,
        entry["time_ms"],  # type: ignore[arg-type]  # checked above
        str(entry["event_type"]),
        str(entry["key"]),
        entry.get("value"),
        entry["metadata"],  # type: ignore[arg-type]  # checked above
    )


def _lines(log: Log, content: bytes) -> Iterator[tuple[int, str | None]]:
    """Yield number and JSON text, None where it is no text, of each MLLOG line.

    Other output between them is ignored.
    """
    token = TOKEN.strip().encode()
    for number, raw in enumerate(content.split(b"\n"), start=1):
        _, found, payload = raw.partition(token)
        if not found:
            continue
        if len(payload) > LINE_CAP_CHARACTERS:
            expected = f"lines of at most {LINE_CAP_CHARACTERS} bytes"
            log.findings.append(
                _finding(log, number, "log.line", expected, f"{len(payload)} bytes")
            )
            yield number, None
            continue
        try:
            yield number, payload.strip().decode()
        except UnicodeDecodeError as error:
            log.findings.append(_finding(log, number, "log.line", "UTF-8 text", str(error)))
            yield number, None


def _finding(
    log: Log, line: int | None, rule: str, expected: str, found: str, remedy: str = "run again"
) -> Finding:
    return Finding(rule, expected, found, remedy, path=log.path, line=line)
