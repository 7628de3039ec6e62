"""Atomic file writes: readers see the old content or the new, also after a crash."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

__all__ = ["canonical_json", "sync", "write_atomically"]


def canonical_json(value: object) -> bytes:
    """Serialise ``value`` to JSON with sorted keys, so that equal values give equal bytes.

    Raises:
        ValueError: if a number is infinite or not a number.
    """
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file at ``path`` atomically; its new content is durable on return.

    Raises:
        OSError: if there is no space or no permission; ``path`` is then unchanged.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, durable (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
