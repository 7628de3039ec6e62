"""Compare each result with a smaller system of its submitter, and with its last round."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Final

from hybridperf.score.official import Context, Efficiency, Improvement
from hybridperf.score.ranking import decide
from hybridperf.tasks.mlperf import lineage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.score.official import Cause, Official, Verdict, Why

__all__ = ["efficiency_of", "with_context"]

_EQUAL: Final = 1e-9  # tolerance for ratios of 1

Results = dict[int, "Official"]  # by position


def with_context(results: Sequence[Official]) -> list[Official]:
    """Return ``results`` with their `Context`.

    The efficiency is relative to the smallest system with an official score of the same
    submitter, round, benchmark, division and accelerator. Improvements compare a submitter's
    best result of a benchmark in a round with its best result in the last round before.
    """
    scored = {at: each for at, each in enumerate(results) if each.minutes and each.score.edition}
    contexts = dict.fromkeys(scored, Context())
    for group in _groups(scored, with_round=True, with_accelerator=True):
        known = [at for at in group if scored[at].accelerators]
        if known:
            smallest = scored[min(known, key=lambda at: (_size(scored[at]), scored[at].minutes))]
            for at in known:
                found = efficiency_of(smallest, scored[at])
                name = smallest.score.system if found else ""
                contexts[at] = Context(smallest=name, efficiency=found)
    for group in _groups(scored, with_round=False, with_accelerator=False):
        best: Results = {}
        for members in _groups({at: scored[at] for at in group}, with_round=True):
            at = min(members, key=lambda at: scored[at].minutes or math.inf)
            best[at] = scored[at]
        in_order = sorted(best, key=lambda at: _round(best[at]))
        for before, at in itertools.pairwise(in_order):
            improved = _improvement(best[before], best[at])
            contexts[at] = dataclasses.replace(contexts[at], improvement=improved)
    return [
        dataclasses.replace(each, context=contexts[at]) if at in contexts else each
        for at, each in enumerate(results)
    ]


def efficiency_of(a: Official, b: Official) -> Efficiency | None:
    """Return the scaling efficiency from ``a`` to ``b``.

    None if they have equally many accelerators, or accelerators that differ.
    """
    if not a.accelerators or not b.accelerators or a.accelerators == b.accelerators:
        return None
    if a.accelerator != b.accelerator:
        return None
    more = b.accelerators / a.accelerators
    rates = a.score.throughput_samples_per_s, b.score.throughput_samples_per_s
    times_s = a.score.time_s, b.score.time_s
    by_time = times_s[0] / times_s[1] / more if times_s[0] and times_s[1] else None
    return Efficiency(
        (a.accelerators, b.accelerators),
        rates[1] / rates[0] / more if rates[0] and rates[1] else None,
        by_time if by_time and math.isfinite(by_time) else None,
    )


def _groups(
    results: Results, *, with_round: bool, with_accelerator: bool = False
) -> Iterable[list[int]]:
    """Yield the positions of the results that belong together."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, each in results.items():
        score = each.score
        key = (
            score.org,
            lineage(score.benchmark, score.edition),
            each.division,
            score.edition if with_round else "",
            each.accelerator if with_accelerator else "",
        )
        groups.setdefault(key, []).append(at)
    return groups.values()


def _improvement(old: Official, new: Official) -> Improvement | None:
    decision = decide(old, new)
    if decision.ratio is None or decision.why is None:
        return None
    return Improvement(
        since=old.score.edition,
        system=old.score.system,
        accelerator=old.accelerator,
        verdict=decision.verdict,
        ratio=decision.ratio,
        interval=decision.interval,
        why=decision.why,
        cause=_cause(decision.why, decision.verdict, same=old.accelerator == new.accelerator),
    )


def _cause(why: Why, verdict: Verdict, *, same: bool) -> Cause | None:
    """Return what contributed most to a faster or slower result; None if unknown."""
    if why.accelerators_ratio is None or why.accelerator_seconds_per_sample_ratio is None:
        return None
    factors: dict[Cause, float] = {
        "convergence": why.samples_ratio,
        "software" if same else "hardware": why.accelerator_seconds_per_sample_ratio,
        "scale": 1 / why.accelerators_ratio,
    }
    if verdict == "faster":
        cause = min(factors, key=lambda each: factors[each])
        return cause if factors[cause] < 1 - _EQUAL else None
    if verdict == "slower":
        cause = max(factors, key=lambda each: factors[each])
        return cause if factors[cause] > 1 + _EQUAL else None
    return None


def _size(result: Official) -> int:
    return result.accelerators or 0


def _round(result: Official) -> tuple[int, ...]:
    return tuple(map(int, result.score.edition.split(".")))
