"""Group the results of rounds into the tables of the site."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hybridperf.score.ranking import standing_of
from hybridperf.tasks.mlperf import lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hybridperf.score.official import Official

__all__ = [
    "BenchmarkPage",
    "BestRow",
    "RoundPage",
    "RoundTable",
    "anchor",
    "benchmark_pages",
    "in_order",
    "round_pages",
]


@dataclass(frozen=True, slots=True)
class RoundTable:
    """The results of one benchmark in one division of a round, the fastest first."""

    benchmark: str
    division: str
    results: tuple[Official, ...]

    @property
    def anchor(self) -> str:
        """Return the HTML id of the table."""
        return f"t-{_digest(self.benchmark, self.division)}"


@dataclass(frozen=True, slots=True)
class RoundPage:
    """One round."""

    edition: str
    tables: tuple[RoundTable, ...]

    @property
    def accelerators(self) -> list[str]:
        """Return the accelerators of the round's systems, sorted by name."""
        return sorted({each.accelerator for table in self.tables for each in table.results} - {""})

    @property
    def file(self) -> str:
        """Return the file name of the page."""
        return f"round-{self.edition}.html"


@dataclass(frozen=True, slots=True)
class BestRow:
    """The best results of a submitter or of an accelerator, by round."""

    name: str
    best: Mapping[str, Official]


@dataclass(frozen=True, slots=True)
class BenchmarkPage:
    """One benchmark over the rounds, in the closed division."""

    name: str  #: its last name, of those that it had
    former: tuple[str, ...]  #: other names that it had
    editions: tuple[str, ...]  #: rounds with a result, in order
    best: Mapping[str, Official]  #: the fastest result by round
    by_submitter: tuple[BestRow, ...]  #: fastest results
    by_accelerator: tuple[BestRow, ...]  #: fastest results
    frugal: tuple[BestRow, ...]  #: results of fewest accelerator-minutes, by accelerator
    improved: tuple[Official, ...]  #: results with an improvement, latest round first

    @property
    def file(self) -> str:
        """Return the file name of the page."""
        return f"benchmark-{_slug(self.name)}.html"


def in_order(editions: Iterable[str]) -> list[str]:
    """Return the distinct rounds ``editions`` in order."""
    return sorted(set(editions), key=lambda edition: tuple(map(int, edition.split("."))))


def anchor(result: Official) -> str:
    """Return the HTML id of a result on the page of its round."""
    score = result.score
    return f"r-{_digest(score.org, score.system, score.benchmark)}"


def round_pages(results: Sequence[Official]) -> list[RoundPage]:
    """Return the page of every round of ``results``, in order."""
    pages = []
    for edition in in_order(each.score.edition for each in results):
        groups: dict[tuple[str, str], list[Official]] = {}
        for each in results:
            if each.score.edition == edition:
                groups.setdefault((each.score.benchmark, each.division), []).append(each)
        tables = (RoundTable(*key, tuple(sorted(groups[key], key=_rank))) for key in sorted(groups))
        pages.append(RoundPage(edition, tuple(tables)))
    return pages


def benchmark_pages(results: Sequence[Official]) -> list[BenchmarkPage]:
    """Return the page of every benchmark with an official score of the closed division, by name."""
    groups: dict[str, list[Official]] = {}
    for each in results:
        # A ranked result whose factor cannot be read has no official minutes.
        ranked = standing_of(each)[0] == "ranked" and each.minutes
        if each.division != "open" and ranked:
            name = lineage(each.score.benchmark, each.score.edition)
            groups.setdefault(name, []).append(each)
    return [_benchmark_page(name, groups[name]) for name in sorted(groups)]


def _benchmark_page(name: str, results: list[Official]) -> BenchmarkPage:
    frugal = [each for each in results if each.accelerator_minutes]
    improved = [each for each in results if each.context and each.context.improvement]
    editions = in_order(each.score.edition for each in results)
    return BenchmarkPage(
        name=name,
        former=tuple(sorted({each.score.benchmark for each in results} - {name})),
        editions=tuple(editions),
        best=_best(results, _minutes),
        by_submitter=_rows(results, lambda each: each.score.org, _minutes),
        by_accelerator=_rows(results, lambda each: each.accelerator, _minutes),
        frugal=_rows(frugal, lambda each: each.accelerator, _frugal),
        improved=tuple(
            sorted(improved, key=lambda each: (-editions.index(each.score.edition), _rank(each)))
        ),
    )


def _rows(
    results: Iterable[Official],
    name: Callable[[Official], str],
    figure: Callable[[Official], float],
) -> tuple[BestRow, ...]:
    groups: dict[str, list[Official]] = {}
    for each in results:
        if name(each):
            groups.setdefault(name(each), []).append(each)
    return tuple(
        BestRow(each, _best(groups[each], figure)) for each in sorted(groups, key=str.casefold)
    )


def _best(results: Iterable[Official], figure: Callable[[Official], float]) -> dict[str, Official]:
    best: dict[str, Official] = {}
    for each in sorted(results, key=figure):
        best.setdefault(each.score.edition, each)
    return best


def _rank(result: Official) -> tuple[bool, float, str, str]:
    minutes = result.minutes
    ranked = standing_of(result)[0] == "ranked"
    return (
        not ranked,
        _minutes(result) if minutes else math.inf,
        result.score.org,
        result.score.system,
    )


def _minutes(result: Official) -> float:
    return result.minutes or math.inf


def _frugal(result: Official) -> float:
    return result.accelerator_minutes or math.inf


def _slug(name: str) -> str:
    plain = "".join(
        char if char.isascii() and (char.isalnum() or char == "_") else "-" for char in name
    )
    return plain if plain == name else f"{plain[:60]}-{_digest(name)}"


def _digest(*names: str) -> str:
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:10]
