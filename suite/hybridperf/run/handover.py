"""Arrays that the harness hands over to ranks through shared memory, which they cannot change."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from typing import TYPE_CHECKING, Any, Final

from hybridperf.run.channel import Array

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["share", "shared"]

_ALIGNMENT: Final = 64  # bytes
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


def share(arrays: Mapping[str, NDArray[Any]]) -> tuple[dict[str, Array], int]:
    """Copy ``arrays`` into one sealed memory; return where each is, and its file descriptor."""
    import numpy as np

    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = Array(array.dtype.str, array.shape, end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    descriptor = os.memfd_create("hybridperf", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max(1, end))
    with mmap.mmap(descriptor, max(1, end)) as memory:
        for name, array in arrays.items():
            place = places[name]
            np.ndarray(array.shape, array.dtype, memory, place.offset)[...] = array
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return places, descriptor


def shared(place: Array, descriptor: int) -> NDArray[Any]:
    """Return the array at ``place`` of the memory ``descriptor``; what is written to it is private.

    Raises:
        ValueError: if the memory is too small.
    """
    import numpy as np

    memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    count, dtype = math.prod(place.shape), np.dtype(place.dtype)
    return np.frombuffer(memory, dtype, count, place.offset).reshape(place.shape)
