"""One hash of the contents of a task's data files, which a large data set keeps beside itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RECORD", "contents_sha256"]

RECORD: Final = "hybridperf_contents.json"  #: beside the files, where hashing them takes long
_LONG_BYTES: Final = 2**26
_HASHED: Final[dict[str, str]] = {}  #: by identity of the files, for this process


def contents_sha256(files: Sequence[Path]) -> str:
    """Return the SHA-256 of names and contents of ``files``.

    Files whose names, sizes and times are those of an earlier call are not read again.
    """
    folder = Path(os.path.commonpath([path.parent for path in files]))
    digest, size = hashlib.sha256(), 0
    for path in files:
        status, name = path.stat(), path.relative_to(folder).as_posix()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
        size += status.st_size
    identity = digest.hexdigest()
    if identity not in _HASHED:
        record = folder / RECORD if size >= _LONG_BYTES else None
        _HASHED[identity] = _recorded(record, identity) or _hashed(folder, files)
        if record is not None:
            with contextlib.suppress(OSError):  # not writable: the next command hashes again
                facts = {"identity": identity, "sha256": _HASHED[identity]}
                write_atomically(record, canonical_json(facts))
    return _HASHED[identity]


def _recorded(record: Path | None, identity: str) -> str | None:
    try:
        facts = {} if record is None else read_object(record)
    except (OSError, ValueError):
        return None
    sha256 = facts.get("sha256")
    return sha256 if facts.get("identity") == identity and isinstance(sha256, str) else None


def _hashed(folder: Path, files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return digest.hexdigest()
