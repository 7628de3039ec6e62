"""Seeds that are all fixed before the first run, and revealed one by one.

A random secret is hashed repeatedly. The last hash is published with the first run and commits to
all seeds: the link of run n is the hash whose n-th hash is the commitment, and the seed is derived
from the link. Nobody who knows the links so far can compute the next one (Lamport 1981, "Password
authentication with insecure communication").
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["LENGTH", "commitment_of", "is_link", "link_at", "reveals", "seed_of"]

LENGTH: Final = 1000  #: seeds that a secret commits to
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_SEEDS: Final = 2**31


def commitment_of(secret: str) -> str:
    """Return what is published before the first run: the hash that commits to every seed."""
    return _hashed(secret, LENGTH)


def link_at(secret: str, position: int) -> str:
    """Return the link of the seed at ``position``, counted from 1.

    Raises:
        ValueError: if ``position`` is not from 1 to `LENGTH`.
    """
    if not 1 <= position <= LENGTH:
        raise ValueError(f"a position from 1 to {LENGTH}, not {position}")
    return _hashed(secret, LENGTH - position)


def seed_of(link: str) -> int:
    """Return the seed, below 2^31, that follows from ``link``."""
    return int(hashlib.sha256(f"seed {link}".encode()).hexdigest(), 16) % _SEEDS


def reveals(link: str, position: int, commitment: str) -> bool:
    """Return whether ``link`` is the one at ``position`` of those that ``commitment`` fixes."""
    return 1 <= position <= LENGTH and _hashed(link, position) == commitment


def is_link(value: object) -> bool:
    """Return whether an untrusted ``value`` has the form of a link."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _hashed(text: str, times: int) -> str:
    for _ in range(times):
        text = hashlib.sha256(text.encode()).hexdigest()
    return text
