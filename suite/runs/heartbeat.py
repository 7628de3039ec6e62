"""Tell from another machine whether a process lives: it changes a small file, others look.

Nobody compares clocks: a look that finds nothing new counts, and many in a row are an end. So
storage that stands still for all nodes ends nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Listener", "heartbeat"]

_INTERVAL_S: Final = 0.5
_LOOKS: Final = 40  #: without a beat, after which a process counts as ended


@contextlib.contextmanager
def heartbeat(path: Path) -> Iterator[None]:
    """Change the file at ``path`` as long as the body goes on."""
    ended = threading.Event()

    def beat() -> None:
        for number in itertools.count():
            with contextlib.suppress(OSError):  # its folder may come and go
                path.write_text(str(number))
            if ended.wait(_INTERVAL_S):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Listener:
    """What another process hears of the heartbeat in the file at ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: bytes | None = None
        self._looked_s = 0.0
        self._still = 0
        self.alive = False  #: a beat was heard

    @property
    def lost(self) -> bool:
        """Tell whether no beat has been heard for too long."""
        return self._still >= _LOOKS

    def look(self) -> None:
        """Look whether there was a beat; to be called often."""
        if time.monotonic() - self._looked_s < _INTERVAL_S:
            return
        try:
            found = self._path.read_bytes()
        except OSError:
            found = b""
        beat = self._last is not None and found not in {b"", self._last}
        self._still = 0 if beat else self._still + 1
        self.alive = self.alive or beat
        self._last = found
        self._looked_s = time.monotonic()
