"""Why a result is slower than the fastest: it needs more samples, more time for each, or both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suite.scores.score import ResultScore

__all__ = ["Split", "seconds_per_sample", "split_time"]


@dataclass(frozen=True, slots=True)
class Split:
    """Ratios to the fastest result; ``time`` is the product of the other two."""

    time: float
    samples: float  #: samples to target: what the algorithm costs
    seconds_per_sample: float  #: evaluation included: what the system costs


def seconds_per_sample(score: ResultScore) -> float | None:
    """Return time to train over samples to target, or None where either is unknown."""
    mean_s, samples = score.olympic_mean_s, score.samples_to_target
    if mean_s is None or not samples or not math.isfinite(mean_s):
        return None
    return mean_s / samples


def split_time(score: ResultScore, fastest: ResultScore) -> Split | None:
    """Return how ``score`` compares with ``fastest``, or None where either lacks what it takes."""
    own, least = seconds_per_sample(score), seconds_per_sample(fastest)
    if not own or not least or own < 0 or least < 0:
        return None
    samples = (score.samples_to_target or 0) / (fastest.samples_to_target or 1)
    return Split(time=samples * (own / least), samples=samples, seconds_per_sample=own / least)
