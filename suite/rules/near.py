"""Keys that are spelt almost like one that is missing."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["misspelt"]

_MOST_COMPARED: Final = 200
_LONGEST: Final = 64
_ALIKE: Final = 0.75


def misspelt(key: str, present: Iterable[str], known: Collection[str]) -> str:
    """Return ``, but 'sead'`` where a key out of ``present`` that is not ``known`` may be meant."""
    others = (each for each in present if each not in known and len(each) <= _LONGEST)
    near = get_close_matches(key, list(islice(others, _MOST_COMPARED)), n=1, cutoff=_ALIKE)
    return f", but {near[0]!r}" if near else ""
