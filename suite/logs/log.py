"""A log as it was read: entries, and what is wrong with how they are written."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suite.findings import Finding

__all__ = [
    "FILE_CAP_BYTES",
    "KEY_UNITS",
    "LINE_CAP_BYTES",
    "OBJECT_UNITS",
    "Budget",
    "Entry",
    "Log",
    "TooMuchError",
]

FILE_CAP_BYTES: Final = 64 * 2**20
LINE_CAP_BYTES: Final = 64 * 2**10
# What the logs of a result may hold, so that reading any takes bounded memory: a unit takes up to
# 45 bytes. Those that hold most in rounds v2.0 and v2.1 have 50,000 lines of 10 MB, 1.3 million.
TEXT_CAP_BYTES: Final = 12 * 2**20
UNITS_CAP: Final = 1_400_000
_LINE_BYTES: Final = 32  # what a line counts beside its text
KEY_UNITS: Final = 2
OBJECT_UNITS: Final = 4  # beside those of its keys


class Entry(msgspec.Struct, gc=False):
    """One log line."""

    key: str
    time_ms: int
    event_type: str
    value: object
    metadata: dict[str, object]
    line: int  #: counted from 1


@dataclass(slots=True)
class Log:
    """What a log says, and what is wrong with how it says it."""

    path: str
    entries: list[Entry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    chained: bool = False  #: every line carries a hash and every hash is right
    sha256: str = ""  #: of the file
    _by_key: dict[str, list[Entry]] | None = field(default=None, repr=False, compare=False)

    @property
    def by_key(self) -> dict[str, list[Entry]]:
        """Return the entries of each key, in file order."""
        if self._by_key is None:
            by_key = defaultdict[str, list[Entry]](list)
            for entry in self.entries:
                by_key[entry.key].append(entry)
            self._by_key = dict(by_key)
        return self._by_key

    def all(self, key: str) -> list[Entry]:
        """Return the entries with ``key``, in file order."""
        return self.by_key.get(key, [])

    def first(self, key: str) -> Entry | None:
        """Return the first entry with ``key``, or None."""
        return next(iter(self.all(key)), None)

    def value(self, key: str) -> object:
        """Return the value of the last entry with ``key``, or None."""
        entries = self.all(key)
        return entries[-1].value if entries else None


class Budget:
    """Count what has been kept of some logs: no input takes more memory or time than this."""

    def __init__(self) -> None:
        self._bytes = self._units = 0

    def take(self, payloads: Sequence[bytes]) -> list[int]:
        """Count some lines, and return the units of each.

        Raises:
            TooMuchError: where they are too many.
        """
        units = [
            KEY_UNITS * line.count(b":")
            + OBJECT_UNITS * line.count(b"{")
            + (line.count(b",") + line.count(b"[") if b"[" in line else 0)
            for line in payloads
        ]
        self._bytes += len(payloads) * _LINE_BYTES + sum(map(len, payloads))
        self._units += sum(units)
        if self._bytes > TEXT_CAP_BYTES or self._units > UNITS_CAP:
            raise TooMuchError("more than 12 MiB, or too many values, in the lines of its logs")
        return units


class TooMuchError(ValueError):
    """Logs hold more than is read of any."""
