"""Whether the loaders of a result keep up with its training, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suite.scores.score import ResultScore

__all__ = ["loader_sentence"]

_FEW = 100  #: samples/s from which on their decimals say nothing


def loader_sentence(score: ResultScore) -> str | None:
    """Return what loaders deliver and training consumes; None where the logs do not say both."""
    loader, appetite = score.loader_samples_per_s, score.appetite_samples_per_s
    if loader is None or appetite is None:
        return None
    verdict = "the loaders are the bottleneck" if loader < appetite else "the loaders keep up"
    return (
        f"the loaders could deliver {_rate(loader)} samples/s, "
        f"training could consume {_rate(appetite)}: {verdict}."
    )


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= _FEW else f"{value:.3g}"
