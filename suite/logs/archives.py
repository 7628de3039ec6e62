"""Archives and compressed files, known by what stands in them at which place."""

from __future__ import annotations

from typing import Final

__all__ = ["archive_kind"]

_MAGIC: Final = {
    "a zip archive": (0, b"PK\x03\x04"),
    "an empty zip archive": (0, b"PK\x05\x06"),
    "a gzip archive": (0, b"\x1f\x8b"),
    "a bzip2 archive": (0, b"BZh"),
    "an xz archive": (0, b"\xfd7zXZ\x00"),
    "a zstd archive": (0, b"\x28\xb5\x2f\xfd"),
    "a 7z archive": (0, b"7z\xbc\xaf\x27\x1c"),
    "a rar archive": (0, b"Rar!\x1a\x07"),
    "a tar archive": (257, b"ustar"),  # whose members could be read as one text
}


def archive_kind(head: bytes) -> str:
    """Return which kind of archive a file is whose first 512 bytes ``head`` has, or ``""``."""
    for kind, (start, magic) in _MAGIC.items():
        if head.startswith(magic, start):
            return kind
    return ""
