"""Represent a parsed log: its entries and the findings about its format."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.findings import Finding

__all__ = [
    "KEY_UNITS",
    "OBJECT_UNITS",
    "Budget",
    "Entry",
    "Log",
    "TooMuchError",
]

# Limits for all logs of a result together, to bound memory: a unit takes up to 45 bytes. The
# largest result of rounds v2.0 and v2.1 has 50,000 lines, 10 MB and 1.3 million units.
TEXT_CAP_BYTES: Final = 12 * 2**20
UNITS_CAP: Final = 1_400_000
_LINE_BYTES: Final = 32  # overhead of a line
KEY_UNITS: Final = 2
OBJECT_UNITS: Final = 4  # in addition to its keys


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
    """The entries of a log, and the findings about its format."""

    path: str
    entries: list[Entry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    chained: bool = False  #: every line has a correct hash
    last_hash: str = ""  #: of the last line that has one
    sha256: str = ""  #: of the file
    _by_key: dict[str, list[Entry]] | None = field(default=None, repr=False, compare=False)

    @property
    def by_key(self) -> dict[str, list[Entry]]:
        """Return the entries by key, each list in file order."""
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
    """A limit on the memory and time taken by all logs of a result together."""

    def __init__(self) -> None:
        self._bytes = self._units = 0

    def take(self, payloads: Sequence[bytes]) -> list[int]:
        """Charge ``payloads`` to the budget and return the units of each.

        Raises:
            TooMuchError: if the budget is exceeded.
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
    """Logs exceed the budget."""
