"""The log's clock: wall time read once, monotonic time from then on.

A run's log therefore never runs backwards and never jumps, whatever happens to the wall clock;
the anchor travels with the run, so the harness and all its processes on one machine agree.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["LogClock"]


@dataclass(frozen=True, slots=True)
class LogClock:
    """Milliseconds since the epoch, advanced by the machine's monotonic clock."""

    wall_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    monotonic_ns: int = field(default_factory=time.monotonic_ns)

    def now_ms(self) -> int:
        """Return the time a log line is stamped with."""
        return self.wall_ms + (time.monotonic_ns() - self.monotonic_ns) // 1_000_000
