"""Chain log lines by SHA-256, and list the SHA-256 digests of files in SHA256SUMS.

The hash of a line covers its content and the previous hash. It is the last field of a line's JSON
object, and the hashed text is all that precedes it. Readers of plain MLPerf logs ignore the
additional field. SHA256SUMS has the format of ``sha256sum --check``.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "GENESIS",
    "HASH_FIELD",
    "SUMS",
    "format_sums",
    "link",
    "parse_sums",
    "seal_line",
    "split_line",
]

GENESIS: Final = "0" * 64  #: the previous hash of the first line
HASH_FIELD: Final = "sha256"
_MARK: Final = f', "{HASH_FIELD}": "'
_END: Final = '"}'
SUMS: Final = "SHA256SUMS"
_SUMS_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *](.+)")


def link(previous: str, body: str) -> str:
    """Return the hash of a line with the JSON ``body``, after the ``previous`` line's hash."""
    return hashlib.sha256(f"{previous}{body}".encode()).hexdigest()


def seal_line(previous: str, body: str) -> tuple[str, str]:
    """Return the chained line for the JSON object ``body``, and its hash."""
    digest = link(previous, body)
    return f"{body[:-1]}{_MARK}{digest}{_END}", digest


def split_line(line: str) -> tuple[str, str] | None:
    """Return the body and the hash of a chained line; None if it has no hash."""
    body, mark, tail = line.rpartition(_MARK)
    if not mark or not tail.endswith(_END) or len(tail) != len(GENESIS) + len(_END):
        return None
    return f"{body}}}", tail.removesuffix(_END)


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
        match = _SUMS_LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"line {number}, which is not a SHA-256 and a name")
        if match[2] in digests:
            raise ValueError(f"line {number}, which names a file again")
        digests[match[2]] = match[1]
    return digests
