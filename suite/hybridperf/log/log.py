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

# Limits to bound memory: a unit takes up to 45 bytes. The largest log of rounds v1.0 to v5.1 has
# 3 MiB and 0.31 million units, the largest result 22 MiB and 2.6 million.
_OF_A_LOG: Final = (12 * 2**20, 1_400_000)  #: limit of a log: bytes and units
_OF_A_RESULT: Final = (48 * 2**20, 4_200_000)  #: limit of all logs of a result
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
    last_hash: str = ""  #: hash of the last line that has a hash
    sha256: str = ""  #: SHA-256 of the file
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
    """A limit on the memory and time that the logs of a result may take."""

    def __init__(self) -> None:
        self._left_bytes, self._left_units = _OF_A_RESULT

    def of_log(self) -> LogBudget:
        """Return the budget of one of its logs."""
        return LogBudget(self)

    def _take(self, count_bytes: int, units: int) -> None:
        self._left_bytes -= count_bytes
        self._left_units -= units
        if self._left_bytes < 0 or self._left_units < 0:
            raise TooMuchError("more than 48 MiB, or too many values, in the logs of a result")


class LogBudget:
    """A limit on the memory and time that one log may take, within the budget of its result."""

    def __init__(self, result: Budget) -> None:
        self._result = result
        self._left_bytes, self._left_units = _OF_A_LOG

    def take(self, payloads: Sequence[bytes], block: bytes) -> list[int]:
        """Charge ``payloads``, joined in ``block``, to the budget and return the units of each.

        Raises:
            TooMuchError: if the budget is exceeded.
        """
        units = [
            KEY_UNITS * line.count(b":") + OBJECT_UNITS * line.count(b"{") for line in payloads
        ]
        if b"[" in block:  # seldom: a comma may be another item
            units = [
                weight + line.count(b",") + line.count(b"[") if b"[" in line else weight
                for weight, line in zip(units, payloads, strict=True)
            ]
        count_bytes, total = len(payloads) * _LINE_BYTES + len(block), sum(units)
        self._left_bytes -= count_bytes
        self._left_units -= total
        if self._left_bytes < 0 or self._left_units < 0:
            raise TooMuchError("more than 12 MiB, or too many values, in the lines of a log")
        self._result._take(count_bytes, total)  # noqa: SLF001 - of this module
        return units


class TooMuchError(ValueError):
    """Logs exceed their budget."""
