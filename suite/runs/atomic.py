"""Write files so that a reader, or a crash at any instant, sees the old one or the new one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

__all__ = ["canonical_json", "sync_folder", "write_atomically"]


def canonical_json(value: object) -> bytes:
    """Return ``value`` as JSON text that is the same for equal values."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by a file with ``content``, durable once this returns.

    Raises:
        OSError: where there is no space or no permission; ``path`` is then as it was.
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
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
