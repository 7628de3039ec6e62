"""Read a manifest of unknown origin: every fact has the type that is asked for, or is None."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from suite.logs.package import SealedRun

__all__ = ["number_of", "text_of", "texts_of"]


def text_of(run: SealedRun, *keys: str) -> str | None:
    """Return the text at nested ``keys`` of the manifest; empty text is unknown."""
    value = run.fact(*keys)
    return value if isinstance(value, str) and value else None


def number_of(run: SealedRun, *keys: str) -> float | None:
    """Return the number at nested ``keys`` of the manifest."""
    value = run.fact(*keys)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def texts_of(runs: Iterable[SealedRun], *keys: str) -> list[str]:
    """Return what the runs say at nested ``keys``, each text once, in order."""
    found = (text_of(run, *keys) for run in runs)
    return list(dict.fromkeys(text for text in found if text is not None))
