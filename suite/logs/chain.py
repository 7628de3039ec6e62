"""The hash chain: each line carries the SHA-256 of all lines before it and of itself.

The hash is the last field of a line's JSON object, so the hashed text is what stands before it,
and readers of plain MLPerf logs see one more field that they ignore.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["GENESIS", "HASH_FIELD", "link", "seal_line", "split_line"]

GENESIS: Final = "0" * 64  #: what the first line is chained to
HASH_FIELD: Final = "sha256"
_MARK: Final = f', "{HASH_FIELD}": "'
_END: Final = '"}'


def link(previous: str, body: str) -> str:
    """Return the hash of a line: of the ``previous`` line's hash and the line's own ``body``."""
    return hashlib.sha256(f"{previous}{body}".encode()).hexdigest()


def seal_line(previous: str, body: str) -> tuple[str, str]:
    """Return the line that carries the JSON object ``body``, chained, and its hash."""
    digest = link(previous, body)
    return f"{body[:-1]}{_MARK}{digest}{_END}", digest


def split_line(line: str) -> tuple[str, str] | None:
    """Return the body and the hash of a chained line, or None where it carries no hash."""
    body, mark, tail = line.rpartition(_MARK)
    if not mark or not tail.endswith(_END) or len(tail) != len(GENESIS) + len(_END):
        return None
    return f"{body}}}", tail.removesuffix(_END)
