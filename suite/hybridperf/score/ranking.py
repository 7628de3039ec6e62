"""Decide which of two results is faster, and assign leaderboard places.

``hybridperf compare``, ``hybridperf score`` and the leaderboard share these decisions. The test is
Welch's t test on the mean times of the runs that reached the target. Yuen's test on the olympic
means has less power, since it uses only three of five runs (figures: docs/commands.md).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.score.context import Verdict, Why
from hybridperf.score.official import Official, Place
from hybridperf.score.places import Times, faster_and_slower
from hybridperf.score.validity import Judgement
from hybridperf.score.welch import Welch, ratio_interval, welch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybridperf.score.interval import Interval
    from hybridperf.score.run_score import RunScore

__all__ = [
    "ALPHA",
    "MEANS",
    "Decision",
    "Means",
    "Standing",
    "decide",
    "means_of",
    "ratio_of_means",
    "reached_runs",
    "standing_of",
    "with_places",
]

ALPHA: Final = 0.05
MEANS: Final = "plain means over the runs that reached the target"
CENSORED: Final = (
    "the difference does not hold once the runs that missed the target count as long as they took"
)

#: the judgement, or too fast: valid, and converged faster than the reference allows
Standing = Literal[
    "ranked", "provisional", "missed", "invalid", "disputed", "not judged", "too fast"
]
_STANDINGS: Final[dict[Judgement, Standing]] = {
    Judgement.BROKEN: "invalid",
    Judgement.DISPUTED: "disputed",
    Judgement.NOT_JUDGED: "not judged",
}


@dataclass(frozen=True, slots=True)
class Means:
    """Arithmetic means over the runs of a result that reached the target."""

    time_s: float
    samples: float  #: samples to target

    @property
    def seconds_per_sample(self) -> float | None:
        """Return the mean seconds per sample, evaluation included; None without samples."""
        return self.time_s / self.samples if self.samples > 0 else None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of comparing result B with result A; ratios are B over A."""

    difference_s: float | None  #: B minus A, of the mean times defined by `MEANS`
    ratio: float | None
    test: Welch | None
    verdict: Verdict  #: B relative to A
    why: Why | None
    notes: tuple[str, ...]  #: caveats


def decide(a: Official, b: Official) -> Decision:
    """Decide whether result ``b`` is faster than result ``a``, at a 5 % significance level.

    The time of a run that missed the target is right-censored, so the run is excluded, which
    favours its result. If that result is significantly faster, the test is repeated with each
    missed run at its lower bound: its elapsed time, or the time of the slowest run that reached
    the target if that is longer. The result must be faster in both tests.
    """
    times_a, times_b = _reached_s(a), _reached_s(b)
    test = welch(times_a, times_b)
    verdict = _verdict(times_a, times_b, test)
    notes: tuple[str, ...] = ()
    if verdict in {"faster", "slower"}:
        times = (times_a, _with_missed(b)) if verdict == "faster" else (_with_missed(a), times_b)
        if _verdict(*times, welch(*times)) != verdict:
            verdict, notes = "tie", (CENSORED,)
    one, other = means_of(a), means_of(b)
    difference_s = ratio = None
    if one is not None and other is not None:
        difference_s = other.time_s - one.time_s
        ratio = other.time_s / one.time_s if one.time_s > 0 else None
    return Decision(
        difference_s=difference_s,
        ratio=ratio,
        test=test,
        verdict=verdict,
        why=_why(a, b),
        notes=notes,
    )


def standing_of(result: Official) -> tuple[Standing, str]:
    """Return whether ``result`` is eligible for a place, and the reason if it is not."""
    completed, required = len(result.score.completed), result.score.required_runs or 0
    mean_s = result.score.olympic_mean_s
    judgement, (_, reason) = result.validity.judgement, result.no_score
    if judgement in _STANDINGS:
        return _STANDINGS[judgement], reason
    if mean_s is not None and mean_s <= 0:
        return "invalid", reason
    if completed < required:
        return "provisional", f"{completed} of {required} runs"
    if mean_s is None:
        return "provisional", reason
    if math.isinf(mean_s):
        return "missed", reason
    if judgement is not Judgement.VALID:
        return "missed" if judgement is Judgement.MISSED else "provisional", reason
    return ("too fast", reason) if result.verdict.passed is False else ("ranked", "")


def with_places(results: Sequence[Official]) -> list[Official]:
    """Return ``results`` with their places within the same round, task, version and division.

    A result's best place follows all results that `decide` finds faster, and its worst place
    precedes all that it finds slower; tied results may share places. P-values are not corrected
    for multiple comparisons.
    """
    placed = list(results)
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, each in enumerate(results):
        if standing_of(each)[0] == "ranked":
            score = each.score
            key = (score.edition, score.benchmark, score.version, each.division)
            groups.setdefault(key, []).append(index)
    for group in groups.values():
        times = [Times(_reached_s(results[at]), _with_missed(results[at])) for at in group]
        for at, (faster, slower) in zip(group, faster_and_slower(times, ALPHA), strict=True):
            place = Place(1 + faster, len(group) - slower)
            placed[at] = dataclasses.replace(results[at], place=place)
    return placed


def reached_runs(result: Official) -> list[RunScore]:
    """Return the runs in the scoring window that reached the target."""
    return [run for run in result.score.window if run.completion == "reached"]


def means_of(result: Official) -> Means | None:
    """Return the means used for comparison; None if no run reached the target."""
    runs = reached_runs(result)
    if not runs:
        return None
    return Means(
        time_s=fmean(run.time_to_train_s for run in runs),
        samples=fmean(run.samples_to_target for run in runs),
    )


def ratio_of_means(a: Official, b: Official) -> Interval | None:
    """Return the 95 % confidence interval of the mean time of ``b`` over that of ``a``."""
    times_a, times_b = _reached_s(a), _reached_s(b)
    return ratio_interval(times_a, times_b) if times_a and times_b else None


def _reached_s(result: Official) -> list[float]:
    return [run.time_to_train_s for run in reached_runs(result)]


def _verdict(times_a: Sequence[float], times_b: Sequence[float], test: Welch | None) -> Verdict:
    if test is None:
        return "undecided"
    if test.p_value >= ALPHA:
        return "tie"
    return "faster" if fmean(times_b) < fmean(times_a) else "slower"


def _with_missed(result: Official) -> list[float]:
    """Return the times of all runs in seconds, with lower bounds for those that missed."""
    times = _reached_s(result)
    missed = [run for run in result.score.window if run.completion == "missed"]
    return times + [max(run.elapsed_s, *times) for run in missed]


def _why(a: Official, b: Official) -> Why | None:
    one, other = means_of(a), means_of(b)
    if (
        one is None
        or other is None
        or min(one.time_s, one.samples, other.time_s, other.samples) <= 0
    ):
        return None
    samples = other.samples / one.samples
    seconds = (other.time_s / other.samples) / (one.time_s / one.samples)
    if not a.accelerators or not b.accelerators:
        return Why(samples, seconds)
    more = b.accelerators / a.accelerators
    return Why(samples, seconds, more, seconds * more)
