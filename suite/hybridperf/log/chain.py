"""Chain log lines by SHA-256: the hash of a line covers its content and the previous hash.

The hash is the last field of a line's JSON object, and the hashed text is all that precedes it.
Readers of plain MLPerf logs ignore the additional field.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["GENESIS", "HASH_FIELD", "link", "seal_line", "split_line"]

GENESIS: Final = "0" * 64  #: the previous hash of the first line
HASH_FIELD: Final = "sha256"
_MARK: Final = f', "{HASH_FIELD}": "'
_END: Final = '"}'


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
