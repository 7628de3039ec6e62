"""Atomic file writes, and temporary folders that do not outlive the harness.

A file that is written atomically has the old content or the new, also after a crash. A harness
holds a lock on a file in its temporary folder, which the kernel releases however the harness ends;
a later command removes folders without a lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["Scratch", "canonical_json", "remove_folder", "sync", "write_atomically"]

_PREFIX: Final = "hybridperf_"
_LOCK: Final = "lock"
_MOST_FOLDER_BYTES: Final = 75  #: a socket's path has at most 107, of which the name takes 30


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


class Scratch:
    """A new folder ``path`` of mode 0700, whose path is short enough for a socket in it."""

    def __init__(self) -> None:
        temporary = tempfile.gettempdir()
        short = len(os.fsencode(temporary)) <= _MOST_FOLDER_BYTES
        parent = Path(temporary if short else "/tmp")  # noqa: S108 - for a new folder of mode 0700
        _sweep(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        # Locked before it has its name, so that nobody finds it unlocked.
        new = self.path / f".{_LOCK}"
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)

    def close(self) -> None:
        """Remove the folder."""
        with contextlib.suppress(OSError):
            remove_folder(self.path)
        os.close(self._lock)


def remove_folder(folder: Path) -> None:
    """Remove ``folder`` with all that is in it, however deep it is, whatever its modes are.

    What a trainer leaves may be deeper than Python's stack and longer than any path may be, so
    folders are moved to the top before they are emptied. Links are not followed.

    Raises:
        OSError: if something cannot be removed.
    """
    if folder.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    new = (f"{folder}/.{secrets.token_hex(8)}_{number}" for number in itertools.count())
    folder.chmod(0o700)
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry)  # noqa: PTH108 - of many, and not a path yet
                continue
            Path(entry.path).chmod(0o700)
            with os.scandir(entry) as children:
                for child in children:
                    if child.is_dir(follow_symlinks=False):
                        Path(child.path).chmod(0o700)  # else its owner cannot move it
                        os.rename(child, next(new))  # noqa: PTH104 - as above
                    else:
                        os.unlink(child)  # noqa: PTH108 - as above
            os.rmdir(entry)  # noqa: PTH106 - as above
    folder.rmdir()


def _sweep(parent: Path) -> None:
    """Remove this user's folders in ``parent`` whose process has ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or in use, or without a lock yet
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.lstat().st_uid == os.geteuid():
                    remove_folder(folder)
            finally:
                os.close(lock)
