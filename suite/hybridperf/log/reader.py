"""Read untrusted logs strictly and within memory bounds, and report errors as findings."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final

from hybridperf.findings import UNREADABLE, Finding, unreadable, visible
from hybridperf.log.chain import GENESIS, link, split_line
from hybridperf.log.lines import A_LOG, PUT_IT_THERE, mllog_lines
from hybridperf.log.log import Budget, Entry, Log, LogBudget
from hybridperf.untrusted import LINE_CAP_BYTES, TIME_CAP_MS, parse_object, reason

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["parse_entry", "read_log"]

_MOST_SHOWN: Final = 10  # findings reported per rule; further ones are counted
_EVENTS: Final = frozenset({"POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"})


def read_log(path: Path, budget: Budget | None = None) -> Log:
    """Read the log at ``path`` and report errors as findings.

    ``budget`` is that of all logs of a result together.
    """
    reader = _Reader(Log(visible(str(path))), (budget or Budget()).of_log())
    digest = hashlib.sha256()
    try:
        for numbers, lines in mllog_lines(path, digest):
            for number, line in zip(numbers, lines, strict=True):
                reader.take(number, line)
    except (OSError, ValueError) as error:
        if (locked := unreadable(error, str(path))) is not None:
            reader.refuse(locked)
        else:
            reader.note("log.file", None, A_LOG, reason(error), PUT_IT_THERE)
    return reader.finish(digest.hexdigest())


class _Reader:
    """Parser of a log, line by line."""

    def __init__(self, log: Log, budget: LogBudget) -> None:
        self._log, self._budget = log, budget
        self._counts: Counter[str] = Counter()  # findings by rule
        self._previous, self._hashes, self._lines = GENESIS, 0, 0
        self._bare: int | None = None  # the first line without a hash

    def take(self, number: int, line: bytes) -> None:
        """Parse ``line``, the payload that follows the token.

        Raises:
            TooMuchError: if the logs exceed the budget.
        """
        self._budget.take((line,), line)
        self._lines += 1
        text = self._text(number, line)
        self._follow_chain(number, text)
        if text is None:
            return
        try:
            self._log.entries.append(parse_entry(text, number))
        except ValueError as error:
            self.note("log.line", number, "one JSON object of an MLLOG line", str(error))

    def _text(self, number: int, line: bytes) -> str | None:
        if len(line) > LINE_CAP_BYTES:
            expected = f"lines of at most {LINE_CAP_BYTES} bytes"
            self.note("log.line", number, expected, "a longer one")
            return None
        try:
            return line.strip().decode()
        except UnicodeDecodeError as error:
            self.note("log.line", number, "UTF-8 text", str(error))
            return None

    def _follow_chain(self, number: int, text: str | None) -> None:
        parts = None if text is None else split_line(text)
        if parts is None:
            self._bare = number if self._bare is None else self._bare
            return
        self._hashes += 1
        body, digest = parts
        if link(self._previous, body) != digest:
            self.note(
                "log.chain",
                number,
                "a line whose hash follows from the lines before it",
                "a line that was edited, or follows one that was removed or inserted",
                "never edit a log; run again",
            )
        self._previous = digest

    def note(
        self, rule: str, line: int | None, expected: str, found: str, remedy: str = "run again"
    ) -> None:
        """Count a finding, and record it if it is among the first of its rule."""
        self._counts[rule] += 1
        if self._counts[rule] <= _MOST_SHOWN:
            self._log.findings.append(Finding(rule, expected, found, remedy, self._log.path, line))

    def refuse(self, finding: Finding) -> None:
        """Record that the machine cannot read the log."""
        self._counts[finding.rule] += 1
        self._log.findings.append(finding)

    def finish(self, sha256: str) -> Log:
        """Return the parsed log; ``sha256`` is the hash of the file."""
        log = self._log
        if self._hashes not in (0, self._lines):
            found = f"{self._hashes} of {self._lines} lines"
            self.note("log.chain", self._bare, "a hash on every line", found)
        for rule, count in self._counts.items():
            if count > _MOST_SHOWN:
                log.findings.append(
                    Finding(
                        rule, "no such line", f"{count}, {_MOST_SHOWN} shown", "run again", log.path
                    )
                )
        log.last_hash = self._previous if self._hashes else ""
        log.sha256 = "" if self._counts["log.file"] or self._counts[UNREADABLE] else sha256
        log.chained = self._lines == self._hashes > 0 and not self._counts["log.chain"]
        return log


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
