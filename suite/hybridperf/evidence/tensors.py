"""Names and shapes of a model's tensors, read from safetensors headers without torch."""

from __future__ import annotations

import hashlib
import math
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.untrusted import (
    COUNT_CAP,
    DOCUMENT_CAP_BYTES,
    open_bounded,
    parse_object,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Tensors", "read_tensors", "tensors_of"]

_LENGTH: Final = struct.Struct("<Q")  # of the header; source: the safetensors format
_METADATA: Final = "__metadata__"

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensors:
    """A summary of the tensors of a model, equal exactly if all names and shapes are."""

    count: int
    values: int  #: numbers in all tensors together
    sha256: str  #: of one line per tensor, sorted: its name and its shape, such as 64x3x7x7


def tensors_of(shapes: Mapping[str, Iterable[int]]) -> Tensors:
    """Summarise tensors by name and shape."""
    sizes = {name: tuple(shape) for name, shape in shapes.items()}
    lines = sorted(f"{name} {'x'.join(map(str, shape))}\n" for name, shape in sizes.items())
    digest = hashlib.sha256("".join(lines).encode()).hexdigest()
    return Tensors(len(sizes), sum(map(math.prod, sizes.values())), digest)


def read_tensors(paths: Iterable[Path]) -> Tensors:
    """Summarise the tensors in the safetensors files ``paths``, which together hold a model.

    Raises:
        OSError: if a file cannot be opened.
        ValueError: if a file is not in the safetensors format, or repeats a tensor of another.
    """
    shapes: dict[str, Shape] = {}
    for path in paths:
        part = _read_header(path)
        if twice := shapes.keys() & part.keys():
            raise ValueError(f"the tensor {min(twice)[:80]!r} in two files")
        shapes |= part
    return tensors_of(shapes)


def _read_header(path: Path) -> dict[str, Shape]:
    with open_bounded(path, sys.maxsize) as file:
        prefix = file.read(_LENGTH.size)
        if len(prefix) < _LENGTH.size:
            raise ValueError("a file shorter than the header of safetensors")
        (length,) = _LENGTH.unpack(prefix)
        if length > DOCUMENT_CAP_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = parse_object(file.read(length).decode())
    return {name: _shape(name, entry) for name, entry in header.items() if name != _METADATA}


def _shape(name: str, entry: object) -> Shape:
    stated = entry.get("shape") if isinstance(entry, dict) else None
    sizes = [whole(size, 0, COUNT_CAP) for size in stated] if isinstance(stated, list) else [None]
    shape = tuple(size for size in sizes if size is not None)
    if len(shape) < len(sizes):
        raise ValueError(f"no shape of the tensor {name[:80]!r}")
    return shape
