"""SIGINT and SIGTERM as requests to stop, which are polled instead of raised."""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["StopRequest", "stop_on_signals"]


@dataclass(slots=True)
class StopRequest:
    """A request to stop: the last signal received, or None."""

    signal: signal.Signals | None = None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Record SIGINT and SIGTERM in a `StopRequest`, which supervision polls, while the body runs.

    Outside the main thread no signal is recorded.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # Python allows handlers in the main thread only
        return

    def record(number: int, _: FrameType | None) -> None:
        request.signal = signal.Signals(number)

    before = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
