"""Suggestions for misspelt words."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]

_ALIKE: Final = 0.52  #: least ratio of difflib.SequenceMatcher


def nearest(word: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Return up to ``most`` words of ``known`` that resemble ``word``, the most similar first."""
    near = get_close_matches(word[:80], list(known), cutoff=_ALIKE)
    near.sort(key=lambda each: each[:1] != word[:1])  # the first letter is rarely wrong
    return near[:most]


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, most: int = 1) -> str:
    """Return "did you mean X?" with up to ``most`` words of ``known`` that resemble ``word``.

    Returns ``otherwise`` if none does.
    """
    near = nearest(word, known, most)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
