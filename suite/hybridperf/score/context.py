"""Describe how a result stands to others: a smaller system, and the round before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hybridperf.score.interval import Interval

__all__ = ["Cause", "Context", "Efficiency", "Improvement", "Verdict", "Why"]

#: hardware: another accelerator; software: the same one trains a sample in less time, or in more;
#: scale: more accelerators, or fewer; convergence: fewer samples, or more
Cause = Literal["hardware", "software", "scale", "convergence"]
Verdict = Literal["faster", "slower", "tie", "undecided"]


@dataclass(frozen=True, slots=True)
class Why:
    """The ratio of mean times, factored into samples to target and seconds per sample; B over A."""

    samples_ratio: float
    seconds_per_sample_ratio: float  #: total time over total samples
    accelerators_ratio: float | None = None
    #: seconds_per_sample_ratio times accelerators_ratio
    accelerator_seconds_per_sample_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Efficiency of scaling from A's accelerators to B's; 1 is linear."""

    accelerators: tuple[int, int]
    #: end-to-end samples per second and accelerator, mean over the scored runs; B over A
    by_throughput: float | None
    by_time_to_train: float | None  #: accelerators times olympic mean time; A over B


@dataclass(frozen=True, slots=True)
class Improvement:
    """What changed between a submitter's best results of two rounds; ratios are new over old."""

    since: str  #: the round of the older result
    system: str  #: of the older result
    accelerator: str  #: of the older result
    verdict: Verdict
    ratio: float  #: of the mean times
    interval: Interval | None  #: 95 % confidence interval of the ratio
    why: Why
    cause: Cause | None  #: what contributed most to a faster or slower result


@dataclass(frozen=True, slots=True)
class Context:
    """How a result stands to others; None where there is nothing to compare it with."""

    smallest: str = ""  #: name of the system that the efficiency is relative to
    efficiency: Efficiency | None = None
    improvement: Improvement | None = None
