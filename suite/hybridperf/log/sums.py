"""Format and parse SHA256SUMS files, in the format of ``sha256sum --check``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SUMS", "format_sums", "parse_sums"]

SUMS: Final = "SHA256SUMS"
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def format_sums(digests: Mapping[str, str]) -> str:
    """Return the content of SHA256SUMS for ``digests`` (file name -> SHA-256), sorted by name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def parse_sums(text: str) -> dict[str, str]:
    """Return the SHA-256 digests in ``text`` by file name.

    Raises:
        ValueError: if a line is malformed or repeats a file.
    """
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number}, which is not a SHA-256 and a name")
        if match[2] in digests:
            raise ValueError(f"line {number}, which names a file again")
        digests[match[2]] = match[1]
    return digests
