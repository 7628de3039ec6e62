"""Signs of life: every rank notes, in its slot of one small file, when and how far it got.

The supervisor reads it for progress and to tell a rank that hangs from one that is slow: by its
own clock, as that of a rank on another machine began to count at another time.
"""

from __future__ import annotations

import os
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Beat", "Pulse", "read_pulse"]

_SLOT: Final = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Beat:
    """What one rank last noted."""

    monotonic_ns: int  #: by the clock of the rank's machine; 0 where it has not noted anything yet
    batches: int  #: training batches and evaluation chunks begun so far


class Pulse:
    """One rank's slot in the file at ``path``."""

    def __init__(self, path: Path, rank: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._offset = rank * _SLOT.size
        self._batches = 0

    def beat(self) -> None:
        """Note that another batch begins; costs a microsecond."""
        self._batches += 1
        os.pwrite(self._descriptor, _SLOT.pack(time.monotonic_ns(), self._batches), self._offset)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def read_pulse(path: Path, ranks: int) -> list[Beat]:
    """Return the last beat of each rank."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    content = content[: ranks * _SLOT.size].ljust(ranks * _SLOT.size, b"\0")
    return [Beat(*slot) for slot in _SLOT.iter_unpack(content)]
