"""Decide which of two results is faster, and assign leaderboard places.

``hybridperf compare``, ``hybridperf score`` and the leaderboard share these decisions. The test is
Welch's t test on the mean times of the runs that reached the target. Yuen's test on the olympic
means has less power, since it uses only three of five runs (figures: docs/commands.md).

Testing every pair for places would take quadratic time. Results are kept in a tree by mean time and
variance, whose nodes are bounded: a result that is certainly faster or slower than all results of a
node, or ties with all of them, is compared with none of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from statistics import fmean, variance
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.score.official import Official, Place, Verdict, Why
from hybridperf.score.statistics import Welch, ratio_interval, t_quantile, t_tail, welch
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.score.run_score import RunScore
    from hybridperf.score.statistics import Interval

__all__ = [
    "ALPHA",
    "MEANS",
    "Decision",
    "Means",
    "Standing",
    "Times",
    "decide",
    "faster_and_slower",
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

_DEGREES: Final = 4_000  #: steps of the table of critical values, up to so many degrees of freedom
_MOST_DEGREES: Final = 1e6
_BLOCK: Final = 1 << 17  #: pairs of a result and a node that are compared at once
_ROUNDING: Final = 1e-12  #: relative, of bounds and critical values

#: the judgement, or too fast: valid, and converged faster than the reference allows
Standing = Literal[
    "ranked",
    "provisional",
    "did not converge",
    "broken",
    "disputed",
    "not judged",
    "superseded",
    "withdrawn",
    "too fast",
]
_STANDINGS: Final[dict[Judgement, Standing]] = {
    Judgement.BROKEN: "broken",
    Judgement.DISPUTED: "disputed",
    Judgement.NOT_JUDGED: "not judged",
    Judgement.SUPERSEDED: "superseded",
    Judgement.WITHDRAWN: "withdrawn",
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
        return "broken", reason
    if completed < required:
        return "provisional", f"{completed} of {required} runs"
    if mean_s is None:
        return "provisional", reason
    if math.isinf(mean_s):
        return "did not converge", reason
    if judgement is not Judgement.VALID:
        missed = judgement is Judgement.MISSED
        return "did not converge" if missed else "provisional", reason
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
    """Return the 95 % confidence interval of the mean time of ``b`` over the mean time of ``a``."""
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
    """Return the times of all runs in seconds, with lower bounds for missed runs."""
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


@dataclass(frozen=True, slots=True)
class Times:
    """The times to train of a result in seconds [run]."""

    reached: Sequence[float]  #: times of the runs that reached the target
    censored: Sequence[float]  #: also the lower bounds of the times of runs that missed it


def faster_and_slower(results: Sequence[Times], alpha: float) -> list[tuple[int, int]]:
    """Return for each result the numbers of significantly faster and slower others.

    One result is faster than another if its mean is lower, by Welch's test at the level ``alpha``,
    and still is once its runs that missed the target are counted at their lower bounds.
    """
    import numpy as np

    tested = [at for at, times in enumerate(results) if len(times.reached) > 1]
    faster = np.zeros(len(results), dtype=np.int64)
    slower = np.zeros(len(results), dtype=np.int64)
    classes: dict[tuple[int, int], list[int]] = {}
    for at in tested:
        sizes = len(results[at].reached), len(results[at].censored)
        classes.setdefault(sizes, []).append(at)
    samples = {
        sizes: _Samples.of([results[at] for at in members], sizes)
        for sizes, members in classes.items()
    }
    for sizes, members in classes.items():
        tree = _Tree(samples[sizes])
        for others, whose in classes.items():
            lower, higher = tree.count(samples[others], alpha)
            faster[whose] += lower
            slower[members] += higher
    return list(zip(faster.tolist(), slower.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _Samples:
    """Results of equally many runs: means, and variances of the means [result]."""

    runs: int
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    censored_runs: int
    censored_mean: NDArray[np.float64]
    censored_variance: NDArray[np.float64]

    @classmethod
    def of(cls, results: Sequence[Times], sizes: tuple[int, int]) -> _Samples:
        import numpy as np

        reached = np.array([_moments(each.reached) for each in results])
        censored = reached
        if sizes[0] < sizes[1]:
            censored = np.array([_moments(each.censored) for each in results])
        return cls(sizes[0], reached[:, 0], reached[:, 1], sizes[1], censored[:, 0], censored[:, 1])

    def taken(self, order: NDArray[np.intp]) -> _Samples:
        return _Samples(
            self.runs,
            self.mean[order],
            self.variance[order],
            self.censored_runs,
            self.censored_mean[order],
            self.censored_variance[order],
        )


def _moments(times: Sequence[float]) -> tuple[float, float]:
    return fmean(times), variance(times) / len(times)


class _Tree:
    """Results in a binary tree, split by mean and variance in turn, with the bounds of each node.

    Node ``n`` of a level has the nodes ``2 n`` and ``2 n + 1`` of the next; a leaf is one result.
    """

    def __init__(self, samples: _Samples) -> None:
        import numpy as np

        count = len(samples.mean)
        self._depth = max(0, (count - 1).bit_length())
        self._order = _ordered(samples.mean, samples.variance, self._depth)
        self._samples = samples.taken(self._order)
        # Equal shares of the results for the nodes of each level; some leaves may be empty.
        self._edges = [
            np.arange((1 << level) + 1) * count >> level for level in range(self._depth + 1)
        ]
        values = self._samples
        self._bounds = [
            [
                _bounds_of(each, edges)
                for each in (
                    *(values.mean, values.variance),
                    *(values.censored_mean, values.censored_variance),
                )
            ]
            for edges in self._edges
        ]

    def count(self, others: _Samples, alpha: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how many of the tree are faster [other], and how many others are slower [result].

        The results are the results of the tree, in the order of its samples.
        """
        import numpy as np

        faster = np.zeros(len(others.mean), dtype=np.int64)
        starts = np.zeros(len(self._order) + 1, dtype=np.int64)  # of ranges of slower others
        for first in range(0, len(others.mean), _BLOCK):
            whose = np.arange(first, min(len(others.mean), first + _BLOCK))
            self._descend(others, whose, np.zeros_like(whose), 0, alpha, faster, starts)
        slower = np.zeros(len(self._order), dtype=np.int64)
        slower[self._order] = np.cumsum(starts[:-1])
        return faster, slower

    def _descend(
        self,
        others: _Samples,
        whose: NDArray[np.intp],
        nodes: NDArray[np.intp],
        level: int,
        alpha: float,
        faster: NDArray[np.int64],
        starts: NDArray[np.int64],
    ) -> None:
        """Count the pairs of ``whose`` and ``nodes``, which are of one ``level``."""
        import numpy as np

        for begin in range(0, len(whose), _BLOCK):
            some, here = whose[begin : begin + _BLOCK], nodes[begin : begin + _BLOCK]
            edges = self._edges[level]
            first, last = edges[here], edges[here + 1]
            least, most = self._certain(others, some, here, level, alpha)
            least &= last > first
            if level == self._depth:
                open_pairs = np.flatnonzero(most & ~least & (last > first))
                least[open_pairs] = [
                    self._is_faster(int(first[at]), others, int(some[at]), alpha)
                    for at in open_pairs
                ]
            np.add.at(faster, some[least], (last - first)[least])
            np.add.at(starts, first[least], 1)
            np.add.at(starts, last[least], -1)
            if level < self._depth:
                rest = most & ~least & (last > first)
                below = np.concatenate([2 * here[rest], 2 * here[rest] + 1])
                self._descend(
                    others, np.tile(some[rest], 2), below, level + 1, alpha, faster, starts
                )

    def _certain(
        self,
        others: _Samples,
        some: NDArray[np.intp],
        here: NDArray[np.intp],
        level: int,
        alpha: float,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return whether all results of the node are faster [pair], and whether any may be."""
        mean, spread, censored_mean, censored_spread = self._bounds[level]
        values = self._samples
        pairs = [(values.runs, mean, spread)]
        if values.censored_runs > values.runs:
            pairs.append((values.censored_runs, censored_mean, censored_spread))
        all_faster, any_faster = [], []
        for runs, means, spreads in pairs:
            one = others.mean[some], others.variance[some], others.runs
            least, most = _verdicts(one, runs, means, spreads, here, alpha)
            all_faster.append(least)
            any_faster.append(most)
        least, most = all_faster[0], any_faster[0]
        for more_least, more_most in zip(all_faster[1:], any_faster[1:], strict=True):
            least, most = least & more_least, most & more_most
        return least, most

    def _is_faster(self, at: int, others: _Samples, other: int, alpha: float) -> bool:
        """Test one pair, as `hybridperf.score.statistics.welch` does."""
        values = self._samples
        slow = float(others.mean[other]), float(others.variance[other]), others.runs
        fast = [(float(values.mean[at]), float(values.variance[at]), values.runs)]
        if values.censored_runs > values.runs:
            mean, spread = float(values.censored_mean[at]), float(values.censored_variance[at])
            fast.append((mean, spread, values.censored_runs))
        return all(_significant(each, slow, alpha) for each in fast)


Moments = tuple[float, float, int]  #: mean, its variance and the number of runs


def _significant(fast: Moments, slow: Moments, alpha: float) -> bool:
    total = fast[1] + slow[1]
    if total <= 0 or fast[0] >= slow[0]:
        return False
    shares = fast[1] / total, slow[1] / total
    degrees = 1 / (shares[0] ** 2 / (fast[2] - 1) + shares[1] ** 2 / (slow[2] - 1))
    return min(1.0, 2 * t_tail((slow[0] - fast[0]) / total**0.5, degrees)) < alpha


def _verdicts(
    one: tuple[NDArray[np.float64], NDArray[np.float64], int],
    runs: int,
    means: tuple[NDArray[np.float64], NDArray[np.float64]],
    spreads: tuple[NDArray[np.float64], NDArray[np.float64]],
    here: NDArray[np.intp],
    alpha: float,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether all of a node, and whether any, are faster than ``one`` [pair]."""
    import numpy as np

    slow, variance, other_runs = one
    gap_most, gap_least = slow - means[0][here], slow - means[1][here]
    low, high = spreads[0][here], spreads[1][here]
    # Satterthwaite's degrees have one maximum, where variances are as degrees of freedom.
    peak = np.clip(variance * (runs - 1) / (other_runs - 1), low, high)
    ends = [_degrees(each, runs, variance, other_runs) for each in (low, high, peak)]
    fewest, most = np.minimum(ends[0], ends[1]), np.maximum.reduce(ends)
    with np.errstate(divide="ignore", invalid="ignore"):
        t_most = gap_most / np.sqrt(low + variance)
        t_least = gap_least / np.sqrt(high + variance)
    all_faster = (gap_least > 0) & (low + variance > 0)
    all_faster &= t_least > _critical(_step(fewest) - 1, alpha) * (1 + _ROUNDING)
    any_faster = (gap_most > 0) & (high + variance > 0)
    any_faster &= ~(t_most < _critical(_step(most) + 2, alpha) * (1 - _ROUNDING))
    return all_faster, any_faster


def _degrees(
    one: NDArray[np.float64], runs: int, other: NDArray[np.float64], other_runs: int
) -> NDArray[np.float64]:
    import numpy as np

    total = one + other
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(total > 0, one / total, 0.5)
    return 1 / (shares**2 / (runs - 1) + (1 - shares) ** 2 / (other_runs - 1))


def _step(degrees: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the step of the table of critical values in which ``degrees`` lie."""
    import numpy as np

    steps: NDArray[np.float64] = np.floor(np.log(degrees) * _DEGREES / np.log(_MOST_DEGREES))
    return steps.astype(np.intp)


def _critical(steps: NDArray[np.intp], alpha: float) -> NDArray[np.float64]:
    """Return the critical values of t at the beginnings of ``steps``; 0 above the last."""
    import numpy as np

    inside = np.clip(steps, 0, _DEGREES)
    table = _table(alpha)
    for step in np.unique(inside[np.isnan(table[inside])]):
        degrees = _MOST_DEGREES ** (int(step) / _DEGREES)
        table[step] = t_quantile(1 - alpha / 2, degrees)
    return np.where(steps > _DEGREES, 0.0, table[inside])


@functools.cache
def _table(alpha: float) -> NDArray[np.float64]:  # noqa: ARG001 - one for each level
    """Return the table of critical values, which `_critical` fills."""
    import numpy as np

    return np.full(_DEGREES + 1, np.nan)


def _ordered(
    mean: NDArray[np.float64], spread: NDArray[np.float64], depth: int
) -> NDArray[np.intp]:
    """Return the order of results in which the leaves of the tree lie."""
    import numpy as np

    count, order = len(mean), np.arange(len(mean))
    for level in range(depth):
        edges = np.arange((1 << level) + 1) * count >> level
        node = np.repeat(np.arange(1 << level), np.diff(edges))
        values = (mean if level % 2 == 0 else spread)[order]
        order = order[np.lexsort((values, node))]
    return order


def _bounds_of(
    values: NDArray[np.float64], edges: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the largest of ``values`` in each node; of an empty one any."""
    import numpy as np

    return np.minimum.reduceat(values, edges[:-1]), np.maximum.reduceat(values, edges[:-1])
