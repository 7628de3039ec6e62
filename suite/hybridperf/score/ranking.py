"""Decide which of two results is faster, and assign leaderboard places.

``hybridperf compare``, ``hybridperf score``, the leaderboard and pytest share `decide`: one ratio
with its interval, one p-value and one verdict for a pair of results. The test is Welch's t test on
the mean times of all compared runs. Yuen's test on the olympic means has less power, since it uses
only three of five runs (figures: docs/commands.md).

Testing every pair for places would take quadratic time. Results are kept in a tree by mean time and
variance, whose nodes are bounded: a result that is certainly faster or slower than all results of a
node, or ties with all of them, is compared with none of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.score.official import Official, Place, Verdict, Why
from hybridperf.score.statistics import Estimate, Welch, estimate, ratio_interval, t_quantile, welch
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hybridperf.score.statistics import Interval

__all__ = [
    "ALPHA",
    "MEANS",
    "Decision",
    "Means",
    "Standing",
    "decide",
    "faster_and_slower",
    "means_of",
    "standing_of",
    "with_places",
]

ALPHA: Final = 0.05
MEANS: Final = (
    "arithmetic means over the completed runs, of MLPerf's results over the runs of the score; a "
    "run that missed the target counts as long as it ran, or as the slowest run if that is longer"
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
    """Arithmetic means over the compared runs of a result, or lower bounds if a run missed."""

    time_s: float
    samples: float  #: samples to target

    @property
    def seconds_per_sample(self) -> float | None:
        """Return the mean seconds per sample, evaluation included; None without samples."""
        return self.time_s / self.samples if self.samples > 0 else None


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of comparing result B with result A; ratios are B over A."""

    a: Estimate | None  #: mean time of A; None if it cannot be tested
    b: Estimate | None
    difference_s: float | None  #: B minus A, of the mean times defined by `MEANS`
    ratio: float | None
    test: Welch | None
    verdict: Verdict  #: B relative to A
    why: Why | None

    @property
    def interval(self) -> Interval | None:
        """Return the 95 % interval of the ratio, which excludes 1 exactly if the test rejects."""
        return ratio_interval(self.a, self.b)


def decide(a: Official, b: Official) -> Decision:
    """Decide whether result ``b`` is faster than result ``a``, at a 5 % significance level.

    The mean of a result of which runs missed the target is a lower bound, since these runs count at
    lower bounds of their times: so a miss does not help its result. Results of which fewer than two
    runs reached the target are not tested.
    """
    times_a, times_b = _tested(a), _tested(b)
    test = welch(times_a, times_b)
    one, other = means_of(a), means_of(b)
    difference_s = ratio = None
    if one is not None and other is not None:
        difference_s = other.time_s - one.time_s
        ratio = other.time_s / one.time_s if one.time_s > 0 else None
    return Decision(
        a=times_a,
        b=times_b,
        difference_s=difference_s,
        ratio=ratio,
        test=test,
        verdict=_verdict(test),
        why=_why(a, b),
    )


def standing_of(result: Official) -> tuple[Standing, str]:
    """Return whether ``result`` is eligible for a place, and the reason if it is not.

    A result of which runs changed their plan, after a loss, is ranked only among results whose
    runs did so under the same plans.
    """
    standing, reason = _standing_by_itself(result)
    if standing != "ranked" or not result.score.segments or result.place is not None:
        return standing, reason
    changed = next(plans for plans in result.score.segments if len(plans) > 1)
    return "provisional", f"changed its plan: {', then '.join(changed)}"


def _standing_by_itself(result: Official) -> tuple[Standing, str]:
    completed, required = len(result.score.completed), result.score.required_runs or 0
    mean_s = result.score.time_s
    judgement, (_, reason) = result.validity.judgement, result.no_score
    if judgement in _STANDINGS:
        return _STANDINGS[judgement], reason
    if mean_s is not None and mean_s <= 0:
        return "broken", reason
    if completed < required:
        return "provisional", f"{completed} of {required} runs"
    if judgement is Judgement.MISSED or (mean_s is not None and math.isinf(mean_s)):
        return "did not converge", reason
    if mean_s is None or judgement is not Judgement.VALID:
        return "provisional", reason
    return ("too fast", reason) if result.verdict.passed is False else ("ranked", "")


def with_places(results: Sequence[Official]) -> list[Official]:
    """Return ``results`` with their places within the same round, task, version and division.

    Results of which runs changed their plan have places among at least two with the same plans.

    A result's best place follows all results that `decide` finds faster, and its worst place
    precedes all that it finds slower; tied results may share places. P-values are not corrected
    for multiple comparisons.
    """
    placed = list(results)
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, each in enumerate(results):
        if _standing_by_itself(each)[0] == "ranked":
            score = each.score
            key = (score.edition, score.benchmark, score.version, each.division, score.segments)
            groups.setdefault(key, []).append(index)
    for group in groups.values():
        if len(group) == 1 and results[group[0]].score.segments:
            continue
        means = [_tested(results[at]) for at in group]
        for at, (faster, slower) in zip(group, faster_and_slower(means, ALPHA), strict=True):
            place = Place(1 + faster, len(group) - slower)
            placed[at] = dataclasses.replace(results[at], place=place)
    return placed


def means_of(result: Official) -> Means | None:
    """Return the means used for comparison; None if no run reached the target."""
    runs = result.score.compared
    if not any(run.completion == "reached" for run in runs):
        return None
    return Means(
        time_s=fmean(run.least_s for run in runs),
        samples=fmean(run.least_samples for run in runs),
    )


def _tested(result: Official) -> Estimate | None:
    """Return the mean time of ``result``; None if it cannot be tested."""
    runs = result.score.compared
    if sum(run.completion == "reached" for run in runs) < 2:
        return None
    return estimate([run.least_s for run in runs])


def _verdict(test: Welch | None) -> Verdict:
    if test is None:
        return "undecided"
    if test.p_value >= ALPHA:
        return "tie"
    return "faster" if test.t < 0 else "slower"


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


def faster_and_slower(means: Sequence[Estimate | None], alpha: float) -> list[tuple[int, int]]:
    """Return for each result the numbers of significantly faster and slower others.

    One result is faster than another if its mean is lower, by Welch's test at the level ``alpha``.
    Results without an estimate of the mean are not tested.
    """
    import numpy as np

    faster = np.zeros(len(means), dtype=np.int64)
    slower = np.zeros(len(means), dtype=np.int64)
    classes: dict[float, list[int]] = {}
    for at, one in enumerate(means):
        if one is not None:
            classes.setdefault(one.degrees, []).append(at)
    samples = {
        degrees: _Samples(
            degrees,
            np.array([one.mean for at in members if (one := means[at])]),
            np.array([one.variance for at in members if (one := means[at])]),
        )
        for degrees, members in classes.items()
    }
    for degrees, members in classes.items():
        tree = _Tree(samples[degrees])
        for others, whose in classes.items():
            lower, higher = tree.count(samples[others], alpha)
            faster[whose] += lower
            slower[members] += higher
    return list(zip(faster.tolist(), slower.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _Samples:
    """Results of equally many runs: means, and variances of the means [result]."""

    degrees: float
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]

    def taken(self, order: NDArray[np.intp]) -> _Samples:
        return _Samples(self.degrees, self.mean[order], self.variance[order])


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
            (_bounds_of(values.mean, edges), _bounds_of(values.variance, edges))
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
        means, spreads = self._bounds[level]
        one = others.mean[some], others.variance[some], others.degrees
        return _verdicts(one, self._samples.degrees, means, spreads, here, alpha)

    def _is_faster(self, at: int, others: _Samples, other: int, alpha: float) -> bool:
        """Test one pair, as `hybridperf.score.statistics.welch` does."""
        fast, slow = (
            Estimate(float(each.mean[nth]), float(each.variance[nth]), each.degrees, 0)
            for each, nth in ((self._samples, at), (others, other))
        )
        test = welch(slow, fast)
        return test is not None and test.t < 0 and test.p_value < alpha


def _verdicts(
    one: tuple[NDArray[np.float64], NDArray[np.float64], float],
    degrees: float,
    means: tuple[NDArray[np.float64], NDArray[np.float64]],
    spreads: tuple[NDArray[np.float64], NDArray[np.float64]],
    here: NDArray[np.intp],
    alpha: float,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether all of a node, and whether any, are faster than ``one`` [pair]."""
    import numpy as np

    slow, variance, other_degrees = one
    gap_most, gap_least = slow - means[0][here], slow - means[1][here]
    low, high = spreads[0][here], spreads[1][here]
    # Satterthwaite's degrees have one maximum, where variances are as degrees of freedom.
    peak = np.clip(variance * degrees / other_degrees, low, high)
    ends = [_degrees(each, degrees, variance, other_degrees) for each in (low, high, peak)]
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
    one: NDArray[np.float64],
    degrees: float,
    other: NDArray[np.float64],
    other_degrees: float,
) -> NDArray[np.float64]:
    import numpy as np

    total = one + other
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(total > 0, one / total, 0.5)
    return 1 / (shares**2 / degrees + (1 - shares) ** 2 / other_degrees)


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
