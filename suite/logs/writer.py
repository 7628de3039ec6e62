"""Write log lines, each with one atomic system call, chained to the line before."""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import TYPE_CHECKING, Final, Self

from suite.logs.chain import GENESIS, seal_line, split_line
from suite.logs.clock import LogClock

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["TOKEN", "LogWriter"]

TOKEN: Final = ":::MLLOG "  # noqa: S105 - no password
_MARK: Final = TOKEN.strip()
_ESCAPED_MARK: Final = f"\\u003a{_MARK[1:]}"


class LogWriter:
    """Append to the log at ``path``, going on with its chain where it already has lines.

    A last line without its end, left by a writer that was killed, is cut off first.
    """

    def __init__(self, path: Path, clock: LogClock | None = None) -> None:
        self._clock = clock or LogClock()
        self._previous = _last_hash(path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

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
        """Make the lines durable and let go of the file."""
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
        # To MLPerf's readers, a token in a text would begin the line anew.
        body = json.dumps(entry, allow_nan=False).replace(_MARK, _ESCAPED_MARK)
        line, self._previous = seal_line(self._previous, body)
        content = f"{TOKEN}{line}\n".encode()
        if os.write(self._descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _last_hash(path: Path) -> str:
    if not path.exists():
        return GENESIS
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    for line in reversed(content[:whole].decode(errors="replace").splitlines()):
        parts = split_line(line)
        if parts is not None:
            return parts[1]
    return GENESIS
