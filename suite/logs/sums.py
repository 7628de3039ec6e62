"""SHA256SUMS of a result: one line a file, as ``sha256sum --check`` reads them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SUMS", "format_sums", "parse_sums"]

SUMS: Final = "SHA256SUMS"
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def format_sums(digests: Mapping[str, str]) -> str:
    """Return the text that names each file's SHA-256."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items()))


def parse_sums(text: str) -> dict[str, str]:
    """Return the SHA-256 of each file that ``text`` names.

    Raises:
        ValueError: saying which line is none, or which file stands twice.
    """
    digests: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number}, which is no SHA-256 and name")
        if match[2] in digests:
            raise ValueError(f"line {number}, which names a file for the second time")
        digests[match[2]] = match[1]
    return digests
