"""Read a log of unknown origin: bounded, strict, and total: what is wrong becomes a finding."""

from __future__ import annotations

import hashlib
from collections import Counter
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
_MOST_SHOWN: Final = 100  # findings of a rule, before the others are only counted
_TIME_CAP_MS: Final = 253_402_300_800_000  # the year 10000
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
    counts: Counter[str] = Counter()  # of findings, by rule
    bare: int | None = None  # the first line without a hash
    for number, line in _lines(log, counts, content):
        lines += 1
        parts = None if line is None else split_line(line)
        if parts is not None:
            hashes += 1
            body, digest = parts
            if link(previous, body) != digest:
                _note(
                    log,
                    counts,
                    _finding(
                        log,
                        number,
                        "log.chain",
                        "a line whose hash follows from the lines before it",
                        "a line that was edited, or follows one that was removed or inserted",
                        "never edit a log; run again",
                    ),
                )
            previous = digest
        elif bare is None:
            bare = number
        if line is None:
            continue
        try:
            log.entries.append(parse_entry(line, number))
        except ValueError as error:
            expected = "one JSON object of an MLLOG line"
            _note(log, counts, _finding(log, number, "log.line", expected, str(error)))
    if hashes not in (0, lines):
        log.findings.append(
            _finding(log, bare, "log.chain", "a hash on every line", f"{hashes} of {lines} lines")
        )
    for rule, count in counts.items():
        if count > _MOST_SHOWN:
            log.findings.append(_finding(log, None, rule, "none such", f"{count} in all"))
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
    time_ms: int = entry["time_ms"]  # type: ignore[assignment]  # checked above
    if not 0 <= time_ms < _TIME_CAP_MS:
        raise ValueError(f"time_ms = {time_ms}, which is no time from 1970 to 9999")
    return Entry(
        line,
        time_ms,
        str(entry["event_type"]),
        str(entry["key"]),
        entry.get("value"),
        entry["metadata"],  # type: ignore[arg-type]  # checked above
    )


def _lines(log: Log, counts: Counter[str], content: bytes) -> Iterator[tuple[int, str | None]]:
    """Yield number and JSON text, None where it is no text, of each MLLOG line.

    Other output between them is ignored.
    """
    token = TOKEN.strip().encode()
    number, end = 1, 0
    while (start := content.find(token, end)) >= 0:
        number += content.count(b"\n", end, start)
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        if (length := end - start - len(token)) > LINE_CAP_CHARACTERS:
            expected = f"lines of at most {LINE_CAP_CHARACTERS} bytes"
            _note(log, counts, _finding(log, number, "log.line", expected, f"{length} bytes"))
            yield number, None
            continue
        try:
            yield number, content[start + len(token) : end].strip().decode()
        except UnicodeDecodeError as error:
            _note(log, counts, _finding(log, number, "log.line", "UTF-8 text", str(error)))
            yield number, None


def _note(log: Log, counts: Counter[str], finding: Finding) -> None:
    """Keep the first findings of each rule, and count all."""
    counts[finding.rule] += 1
    if counts[finding.rule] <= _MOST_SHOWN:
        log.findings.append(finding)


def _finding(
    log: Log, line: int | None, rule: str, expected: str, found: str, remedy: str = "run again"
) -> Finding:
    return Finding(rule, expected, found, remedy, path=log.path, line=line)
