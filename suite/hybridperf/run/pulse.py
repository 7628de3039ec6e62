"""Progress of ranks: each records its number of batches in its slot of a small file.

The supervisor reads it to show progress, and to distinguish a rank that hangs from a slow one. It
measures silence by its own clock, because monotonic clocks of two machines are not comparable.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from hybridperf.untrusted import PULSE_CAP_BYTES, open_bounded

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Pulse", "read_pulse"]

_SLOT: Final = struct.Struct("<q")


class Pulse:
    """The slot of ``rank`` in the progress file at ``path``."""

    def __init__(self, path: Path, rank: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._offset = rank * _SLOT.size
        self._batches = 0

    def beat(self) -> None:
        """Record that another batch begins; takes about a microsecond."""
        self._batches += 1
        os.pwrite(self._descriptor, _SLOT.pack(self._batches), self._offset)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_pulse(path: Path, ranks: int) -> list[int]:
    """Return how many training batches and evaluation chunks each rank has begun, [rank]."""
    try:
        with open_bounded(path, PULSE_CAP_BYTES) as file:
            content = file.read(ranks * _SLOT.size)
    except (OSError, ValueError):  # not created yet, or not a regular file
        content = b""
    content = content.ljust(ranks * _SLOT.size, b"\0")
    return [batches for (batches,) in _SLOT.iter_unpack(content)]
