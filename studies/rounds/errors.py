"""Summarise the errors of projected results, and traits of the worst decile."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from studies.rounds.project import averaging_share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from studies.rounds.project import Projected

__all__ = ["Summary", "Trait", "submitter_halves", "summarize", "traits_of_worst", "worst_decile"]

_TENTH: Final = 0.1


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of several projected results; all are shares of the published throughput."""

    results: int
    median: float  #: median absolute error
    ninth_decile: float  #: 90th percentile of absolute errors
    worst_decile_mean: float  #: mean absolute error of the worst tenth, of one result or more
    bias: float  #: median signed error; positive if projected too fast


@dataclass(frozen=True, slots=True)
class Trait:
    """A property shared by part of the results."""

    words: str
    of_worst: float  #: share of the worst decile with the trait
    of_others: float  #: share of the remaining results with the trait


def summarize(results: Sequence[Projected]) -> Summary | None:
    """Return the summary of ``results``; None if there are none."""
    if not results:
        return None
    errors = sorted(abs(each.error) for each in results)
    within = math.ceil((1 - _TENTH) * len(errors))
    return Summary(
        results=len(errors),
        median=median(errors),
        ninth_decile=errors[within - 1],
        worst_decile_mean=fmean(errors[min(within, len(errors) - 1) :]),
        bias=median(each.error for each in results),
    )


def worst_decile(results: Sequence[Projected]) -> list[Projected]:
    """Return the tenth of ``results`` with the largest absolute errors, the largest first."""
    in_order = sorted(results, key=lambda each: -abs(each.error))
    return in_order[: max(1, len(in_order) - math.ceil((1 - _TENTH) * len(in_order)))]


def submitter_halves(results: Sequence[Projected]) -> tuple[list[Projected], list[Projected]]:
    """Return the results of every second submitter in the order of names, and the remaining ones.

    For cross-validation: a fit to one half is tested on the other.
    """
    names = sorted({each.result.submitter for each in results})
    first = set(names[::2])
    one = [each for each in results if each.result.submitter in first]
    return one, [each for each in results if each.result.submitter not in first]


def traits_of_worst(results: Sequence[Projected]) -> list[Trait]:
    """Return the traits at least twice as frequent in the worst decile as elsewhere.

    The most frequent trait comes first.
    """
    worst = worst_decile(results) if results else []
    others = [each for each in results if each not in worst]
    traits = [
        Trait(words, _share(worst, has), _share(others, has)) for words, has in _TRAITS.items()
    ]
    found = [each for each in traits if each.of_worst and each.of_worst >= 2 * each.of_others]
    return sorted(found, key=lambda each: -each.of_worst)


def _share(results: Sequence[Projected], has: Callable[[Projected], bool]) -> float:
    return fmean(has(each) for each in results) if results else 0.0


def _on_device(each: Projected) -> tuple[float, float]:
    """Return the samples per device and step, of the result and of its base."""
    one, base = each.result, each.base
    return one.batch_size / one.devices, base.batch_size / base.devices


_TRAITS: Final[Mapping[str, Callable[[Projected], bool]]] = {
    "slower than projected": lambda each: each.error > 0,
    "faster than projected": lambda each: each.error < 0,
    "more than 512 devices": lambda each: each.result.devices > 512,
    "several nodes, projected from one": lambda each: (
        each.result.devices > each.result.devices_per_node
        and each.base.devices <= each.base.devices_per_node
    ),
    "one node of other size than that projected from": lambda each: (
        each.result.devices == each.result.devices_per_node != each.base.devices_per_node
    ),
    "up to a quarter of the samples on a device": lambda each: (
        4 * _on_device(each)[0] <= _on_device(each)[1]
    ),
    "averaging gradients takes a quarter of the step or more": lambda each: (
        averaging_share(each) >= 1 / 4
    ),
}
