"""What harness and ranks hand over to each other in sealed memory, which neither can change.

The harness hands over samples, as arrays; ranks hand over weights, as files.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hybridperf.run.channel import Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["require_sealed", "sealed_copy", "share", "shared"]

_ALIGNMENT: Final = 64  # bytes
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def share(arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Array], int]:
    """Copy ``arrays`` into one sealed memory; return where each is, and its file descriptor."""
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = Array(array.dtype.str, array.shape, end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    descriptor = _memory()
    os.ftruncate(descriptor, max(1, end))
    with mmap.mmap(descriptor, max(1, end)) as memory:
        for name, array in arrays.items():
            place = places[name]
            np.ndarray(array.shape, array.dtype, memory, place.offset)[...] = array
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return places, descriptor


def sealed_copy(content: bytes) -> int:
    """Copy ``content`` into sealed memory, and return its file descriptor."""
    descriptor = _memory()
    with open(descriptor, "wb", buffering=0, closefd=False) as memory:
        left = memoryview(content)
        while left:
            left = left[memory.write(left) :]
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def require_sealed(descriptor: int, size: int) -> None:
    """Check that ``descriptor``, which a rank sent, is memory of ``size`` bytes that is sealed.

    Raises:
        ValueError: if it is something else, which somebody could still change.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:  # no memory, but a file, a socket or a pipe
        seals = 0
    if seals & _SEALS != _SEALS:
        raise ValueError("weights in memory that is not sealed")
    if (found := os.fstat(descriptor).st_size) != size:
        raise ValueError(f"{found} bytes of weights, where it says {size}")


def _memory() -> int:
    return os.memfd_create("hybridperf", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)


def shared(place: Array, descriptor: int) -> NDArray[Any]:
    """Return the array at ``place`` of the memory ``descriptor``; what is written to it is private.

    Raises:
        ValueError: if the memory is too small.
    """
    memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    count, dtype = math.prod(place.shape), np.dtype(place.dtype)
    return np.frombuffer(memory, dtype, count, place.offset).reshape(place.shape)
