"""Write hash-chained log lines, each with a single system call."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from hybridperf.log.chain import GENESIS, seal_line, split_line

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["TOKEN", "LogClock", "LogWriter"]

TOKEN: Final = ":::MLLOG "  # noqa: S105 - no password
_MARK: Final = TOKEN.strip()
_ESCAPED_MARK: Final = f"\\u003a{_MARK[1:]}"


class LogWriter:
    """A writer that appends hash-chained lines to the log at ``path``.

    It continues the chain of an existing log, after truncating an incomplete last line.

    Raises:
        OSError: if ``path`` is not a regular file or cannot be opened.
    """

    def __init__(self, path: Path, clock: LogClock | None = None) -> None:
        self._clock = clock or LogClock()
        # Neither follow a link nor block on a pipe: the log must be a regular file.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        self._previous = _last_hash(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush the lines to storage and close the file."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)

    def point(self, key: str, value: object = None, **metadata: object) -> None:
        """Log a point in time."""
        self._write("POINT_IN_TIME", key, value, metadata)

    def start(self, key: str, value: object = None, **metadata: object) -> None:
        """Log the start of an interval."""
        self._write("INTERVAL_START", key, value, metadata)

    def stop(self, key: str, value: object = None, **metadata: object) -> None:
        """Log the end of an interval."""
        self._write("INTERVAL_END", key, value, metadata)

    def _write(self, event: str, key: str, value: object, metadata: dict[str, object]) -> None:
        caller = sys._getframe(2)  # noqa: SLF001 - the public way, inspect, reads source files while the clock runs
        place = {"file": caller.f_globals["__name__"], "lineno": caller.f_lineno}
        entry = {
            "namespace": "",
            "time_ms": self._clock.now_ms(),
            "event_type": event,
            "key": key,
            "value": value,
            "metadata": place | metadata,
        }
        # MLPerf's parsers would take a token inside a string for the start of a line.
        body = json.dumps(entry, allow_nan=False).replace(_MARK, _ESCAPED_MARK)
        line, self._previous = seal_line(self._previous, body)
        content = f"{TOKEN}{line}\n".encode()
        if os.write(self._descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _last_hash(descriptor: int) -> str:
    """Return the hash of the last complete line, and truncate the log after it."""
    content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(descriptor, whole)
    for line in reversed(content[:whole].decode(errors="replace").splitlines()):
        parts = split_line(line)
        if parts is not None:
            return parts[1]
    return GENESIS


@dataclass(frozen=True, slots=True)
class LogClock:
    """A wall clock in ms that is read once and then advanced by the monotonic clock."""

    wall_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    monotonic_ns: int = field(default_factory=time.monotonic_ns)

    def now_ms(self) -> int:
        """Return the current time in ms since the Unix epoch."""
        return self.wall_ms + (time.monotonic_ns() - self.monotonic_ns) // 1_000_000
