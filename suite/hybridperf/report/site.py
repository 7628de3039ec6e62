"""Write the site over rounds of MLPerf: a page for each round and benchmark, and an index.

The pages work without scripts; with scripts, their filters are part of the URL.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from hybridperf.errors import UserError
from hybridperf.findings import visible
from hybridperf.log.package import edition_of
from hybridperf.report.judgement import found_packages, judged_scores
from hybridperf.report.page import page_templates, render_page, write_files
from hybridperf.report.svg import dots_scale, draw_dots
from hybridperf.report.tables import score_rows, scores_csv, scores_json
from hybridperf.report.trend import draw_trend
from hybridperf.score.history import with_context
from hybridperf.score.metrics import METRICS
from hybridperf.score.ranking import MEANS, standing_of, with_places
from hybridperf.score.statistics import OLYMPIC_INTERVAL
from hybridperf.tasks.mlperf import benchmark_title, lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import jinja2

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package
    from hybridperf.score.official import Official

__all__ = [
    "BenchmarkPage",
    "Facet",
    "RoundPage",
    "RoundTable",
    "anchor",
    "build_site",
    "compared_at_equal_size",
    "placed_by_size",
    "published_packages",
    "site_files",
]

_SIZES: Final = (8, 64, 512)  #: numbers of accelerators whose times are compared over the rounds
_REPOSITORY: Final = "https://github.com/mlcommons/training_results_v"
_IMPROVEMENT_COLUMNS: Final = (
    "since_round",
    "since_ratio",
    "since_ratio_low",
    "since_verdict",
    "since_samples_ratio",
    "since_accelerator_seconds_ratio",
    "since_accelerators_ratio",
    "since_cause",
)
#: the same between systems of equally many accelerators of a kind
_FASTER_COLUMNS: Final = tuple(
    each for each in _IMPROVEMENT_COLUMNS if each != "since_accelerators_ratio"
)

_Key = TypeVar("_Key")
#: name of a submitter or accelerator -> its best result by round
BestResults = dict[str, dict[str, "Official"]]


def published_packages(paths: Sequence[Path], barred: list[Finding] | None = None) -> list[Package]:
    """Return the results of published rounds at or below ``paths``; none if all are others.

    Findings on unreadable files and folders are appended to ``barred``.

    Raises:
        UserError: exit status 2 if there are results of both kinds.
    """
    packages = found_packages(paths, barred)
    published = [package for package in packages if edition_of(package)]
    if published and len(published) < len(packages):
        other = next(package for package in packages if not edition_of(package))
        raise UserError.of(
            "report.path",
            "all results in folders training_results_v<round>, or none",
            f"{len(published)} of {len(packages)} in such folders",
            "name folders of one kind",
            path=other.name,
        )
    return published


def build_site(
    packages: Sequence[Package], out: Path, jobs: int = 1, barred: list[Finding] | None = None
) -> list[Path]:
    """Write the site over the rounds of ``packages`` to ``out``, and return its files.

    The output is deterministic, and each file is replaced atomically. Findings on unreadable files
    are appended to ``barred``.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    results = with_context(with_places(judged_scores(packages, jobs=jobs, barred=barred)))
    return write_files(site_files(results), out)


def site_files(results: Sequence[Official]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of every file of the site; results have places and contexts."""
    rounds, benchmarks = _round_pages(results), _benchmark_pages(results)
    faster = _faster(results)
    shared = {"rounds": rounds, "benchmarks": benchmarks}
    index = {
        "best": _best_by_size(rounds[0]),
        "over_rounds": {page.name: page.best for page in benchmarks},
        "pages": {page.name: page for page in benchmarks},
    }
    yield "index.html", _page("index", shared | index)
    for benchmark in benchmarks:
        yield benchmark.file, _page("benchmark", shared | {"page": benchmark})
    for one in rounds:
        yield one.file, _page("round", shared | {"page": one, "facets": _round_facets(rounds, one)})
    yield "faster.html", _page("faster", shared | {"faster": faster, "facets": _facets(faster)})
    rows = score_rows(results)
    yield "scores.csv", scores_csv(rows)
    yield "scores.json", scores_json(rows)


# What the pages hold


@dataclass(frozen=True, slots=True)
class RoundTable:
    """The results of one benchmark in one division of a round, by size, the fastest first."""

    benchmark: str
    division: str
    results: tuple[Official, ...]  #: with their places among systems of equally many accelerators

    @property
    def anchor(self) -> str:
        """Return the HTML id of the table."""
        return f"t-{_digest(self.benchmark, self.division)}"

    def starts_size(self, nth: int) -> bool:
        """Tell whether the ``nth`` result has other numbers of accelerators than the one before."""
        sizes = [each.accelerators for each in self.results[max(nth - 1, 0) : nth + 1]]
        return len(set(sizes)) > 1


@dataclass(frozen=True, slots=True)
class RoundPage:
    """One round."""

    edition: str
    tables: tuple[RoundTable, ...]

    @property
    def file(self) -> str:
        """Return the file name of the page."""
        return f"round-{self.edition}.html"

    @property
    def results(self) -> list[Official]:
        """Return the results of all tables."""
        return [each for table in self.tables for each in table.results]


@dataclass(frozen=True, slots=True)
class BenchmarkPage:
    """One benchmark over the rounds, in the closed division."""

    name: str  #: latest name of the benchmark in logs
    former: tuple[str, ...]  #: earlier names
    best: Mapping[str, Official]  #: the fastest result by round, newest first
    by_submitter: BestResults  #: fastest results
    by_accelerator: BestResults  #: results of fewest accelerator-minutes
    by_size: Mapping[int, BestResults]  #: fastest results by accelerator, of so many accelerators
    improved: tuple[Official, ...]  #: results with an improvement, newest round first

    @property
    def title(self) -> str:
        """Return the name that people read."""
        return benchmark_title(self.name)

    @property
    def editions(self) -> list[str]:
        """Return the rounds with a ranked result, newest first."""
        return list(self.best)

    @property
    def file(self) -> str:
        """Return the file name of the page."""
        return f"benchmark-{_slug(self.name)}.html"


@dataclass(frozen=True, slots=True)
class Facet:
    """One choice by which the rows of a page are filtered, a parameter of its URL."""

    name: str  #: parameter, and data attribute of rows or tables
    label: str
    options: tuple[tuple[str, str], ...]  #: values, and what they are called
    chosen: str = ""


def anchor(result: Official) -> str:
    """Return the HTML id of a result on the page of its round."""
    score = result.score
    return f"r-{_digest(score.org, score.system, score.benchmark)}"


def placed_by_size(results: Sequence[Official]) -> list[Official]:
    """Return ``results`` with their places among systems of equally many accelerators.

    Systems without accelerators, whose sizes are unknown, have no place.
    """
    placed = [dataclasses.replace(each, place=None) for each in results]
    for size, at in _positions(results, lambda each: each.accelerators).items():
        if size:
            for position, each in zip(at, with_places([results[one] for one in at]), strict=True):
                placed[position] = each
    return placed


def _round_pages(results: Sequence[Official]) -> list[RoundPage]:
    """Return the page of every round of ``results``, newest first."""
    placed = placed_by_size(results)
    pages = []
    for edition in _newest_first(each.score.edition for each in results):
        groups: dict[tuple[str, str], list[Official]] = {}
        for each in placed:
            if each.score.edition == edition:
                groups.setdefault((each.score.benchmark, each.division), []).append(each)
        tables = [
            RoundTable(*key, tuple(sorted(group, key=_size_and_rank)))
            for key, group in groups.items()
        ]
        tables.sort(
            key=lambda each: (
                benchmark_title(each.benchmark, edition).casefold(),
                each.benchmark,
                each.division,
            )
        )
        pages.append(RoundPage(edition, tuple(tables)))
    return pages


def _best_by_size(page: RoundPage) -> list[tuple[RoundTable, dict[int, Official]]]:
    """Return the tables of a round with ranked results of the closed division.

    With each, its fastest result by number of accelerators, for every one of `_SIZES`, and at 0 the
    fastest of any number.
    """
    best = []
    for table in page.tables:
        ranked = sorted(filter(_is_official, table.results), key=_minutes)
        if ranked and table.division != "open":
            row = {each.accelerators: each for each in reversed(ranked) if each.accelerators}
            row = {size: each for size, each in row.items() if size in _SIZES}
            best.append((table, {**row, 0: ranked[0]}))
    return best


def _benchmark_pages(results: Sequence[Official]) -> list[BenchmarkPage]:
    """Return the page of every benchmark with an official score of the closed division, by name."""
    groups: dict[str, list[Official]] = {}
    for each in results:
        if each.division != "open" and _is_official(each):
            name = lineage(each.score.benchmark, each.score.edition)
            groups.setdefault(name, []).append(each)
    pages = [_benchmark_page(name, groups[name]) for name in groups]
    return sorted(pages, key=lambda page: (page.title.casefold(), page.name))


def _benchmark_page(name: str, results: list[Official]) -> BenchmarkPage:
    frugal = [each for each in results if each.accelerator_minutes]
    improved = [each for each in results if _verdict(each)]
    best = _best(results, _minutes)
    editions = list(best)
    by_size = {
        size: _best_by(
            lambda each: each.accelerator,
            [each for each in results if each.accelerators == size],
            _minutes,
        )
        for size in _SIZES
    }
    return BenchmarkPage(
        name=name,
        former=tuple(sorted({each.score.benchmark for each in results} - {name})),
        best=best,
        by_submitter=_best_by(lambda each: each.score.org, results, _minutes),
        by_accelerator=_best_by(
            lambda each: each.accelerator, frugal, lambda each: each.accelerator_minutes or math.inf
        ),
        by_size={size: lines for size, lines in by_size.items() if lines},
        improved=tuple(
            sorted(improved, key=lambda each: (editions.index(each.score.edition), _rank(each)))
        ),
    )


def compared_at_equal_size(results: Iterable[Official]) -> list[Official]:
    """Return the official results with their improvements among systems of the same accelerators.

    An improvement is over the submitter's result with equally many of the same accelerator in the
    last round before that has one.
    """
    scored = [each for each in results if _is_official(each) and each.accelerator]
    groups = _positions(scored, lambda each: (each.accelerator, each.accelerators))
    return [
        each
        for (_, size), at in groups.items()
        if size
        for each in with_context([scored[one] for one in at])
    ]


def _faster(results: Iterable[Official]) -> list[tuple[str, list[Official]]]:
    """Return by round, newest first, the results that can be compared with an earlier round."""
    found: dict[str, list[Official]] = {}
    for each in compared_at_equal_size(results):
        if _verdict(each):
            found.setdefault(each.score.edition, []).append(each)
    return [
        (edition, sorted(found[edition], key=_benchmark_and_rank))
        for edition in _newest_first(found)
    ]


def _verdict(result: Official) -> str:
    improvement = result.context.improvement if result.context else None
    return improvement.verdict if improvement else ""


def _positions(
    results: Sequence[Official], key: Callable[[Official], _Key]
) -> dict[_Key, list[int]]:
    groups: dict[_Key, list[int]] = {}
    for at, each in enumerate(results):
        groups.setdefault(key(each), []).append(at)
    return groups


def _best_by(
    name: Callable[[Official], str],
    results: Iterable[Official],
    figure: Callable[[Official], float],
) -> BestResults:
    """Return the best results by round of each ``name``, the names of the newest rounds first."""
    groups: dict[str, list[Official]] = {}
    for each in results:
        if name(each):
            groups.setdefault(name(each), []).append(each)
    best = {each: _best(groups[each], figure) for each in sorted(groups, key=str.casefold)}
    newest = _newest_first(edition for line in best.values() for edition in line)
    return dict(sorted(best.items(), key=lambda item: newest.index(next(iter(item[1])))))


def _best(results: Iterable[Official], figure: Callable[[Official], float]) -> dict[str, Official]:
    """Return the result of the lowest ``figure`` by round, newest first."""
    best: dict[str, Official] = {}
    for each in sorted(results, key=figure):
        best.setdefault(each.score.edition, each)
    return {edition: best[edition] for edition in _newest_first(best)}


def _newest_first(editions: Iterable[str]) -> list[str]:
    """Return the distinct rounds ``editions``, newest first."""
    return sorted(set(editions), key=lambda each: tuple(map(int, each.split("."))), reverse=True)


def _is_official(result: Official) -> bool:
    # A ranked result whose factor cannot be read has no official minutes.
    return standing_of(result)[0] == "ranked" and bool(result.minutes)


def _rank(result: Official) -> tuple[bool, float, str, str]:
    ranked = standing_of(result)[0] == "ranked"
    return not ranked, _minutes(result), result.score.org, result.score.system


def _size_and_rank(result: Official) -> tuple[object, ...]:
    return result.accelerators or 0, _rank(result)


def _benchmark_and_rank(result: Official) -> tuple[object, ...]:
    return benchmark_title(_latest_name(result)).casefold(), _size_and_rank(result)


def _minutes(result: Official) -> float:
    return result.minutes or math.inf


def _slug(name: str) -> str:
    plain = "".join(
        char if char.isascii() and (char.isalnum() or char == "_") else "-" for char in name
    )
    return plain if plain == name else f"{plain[:60]}-{_digest(name)}"


def _digest(*names: str) -> str:
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:10]


# Filters and links


def _round_facets(rounds: Sequence[RoundPage], page: RoundPage) -> list[Facet]:
    """Return the facets of a page of a round; the round leads to the page of another."""
    names = {each.benchmark: benchmark_title(each.benchmark, page.edition) for each in page.tables}
    editions = tuple((each.file, f"v{each.edition}") for each in rounds)
    return [
        Facet("round", "round", editions, chosen=page.file),
        Facet("benchmark", "benchmark", _by_text(names)),
        *_system_facets(page.results),
        Facet("division", "division", _same({each.division for each in page.tables})),
        Facet("available", "available", _same({each.availability for each in page.results})),
    ]


def _facets(faster: Sequence[tuple[str, Sequence[Official]]]) -> list[Facet]:
    """Return the facets of the page that compares rounds."""
    results = [each for _, found in faster for each in found]
    names = {_latest_name(each): benchmark_title(_latest_name(each)) for each in results}
    return [
        Facet("round", "round", tuple((edition, f"v{edition}") for edition, _ in faster)),
        Facet("benchmark", "benchmark", _by_text(names)),
        *_system_facets(results),
        Facet("division", "division", _same({each.division for each in results})),
        Facet("verdict", "verdict", _same(set(map(_verdict, results)))),
    ]


def _system_facets(results: Sequence[Official]) -> Iterator[Facet]:
    sizes = sorted({each.accelerators for each in results if each.accelerators is not None})
    yield Facet("accelerators", "count", tuple((f"{size}", f"{size:,d}") for size in sizes))
    yield Facet("accelerator", "accelerator", _same({each.accelerator for each in results}))
    yield Facet("submitter", "submitter", _same({each.score.org for each in results}))


def _same(values: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple((each, each) for each in sorted(values - {""}, key=str.casefold))


def _by_text(texts: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(texts.items(), key=lambda item: (item[1].casefold(), item[0])))


def _latest_name(result: Official) -> str:
    return lineage(result.score.benchmark, result.score.edition)


def _link(result: Official) -> str:
    """Return the link to a result on the page of its round, among those of its size."""
    score = result.score
    wanted = f"benchmark={quote(visible(score.benchmark), safe='')}"
    if result.accelerators:
        wanted += f"&accelerators={result.accelerators}"
    return f"round-{score.edition}.html?{wanted}#{anchor(result)}"


def _public_links(result: Official) -> list[tuple[str, str]]:
    """Return names and addresses of a result's logs, system and code in the round's repository."""
    score = result.score
    org, system, benchmark = (
        quote(each, safe="", errors="replace")
        for each in (score.org, score.system, score.benchmark)
    )
    top = f"{_REPOSITORY}{score.edition}"
    return [
        ("logs", f"{top}/tree/main/{org}/results/{system}/{benchmark}"),
        ("system", f"{top}/blob/main/{org}/systems/{system}.json"),
        ("code", f"{top}/tree/main/{org}/benchmarks"),
    ]


# The pages


def _page(name: str, values: Mapping[str, object]) -> str:
    template = _templates().get_template(f"site_{name}.html.j2")
    return render_page(template, {"current": "", **values}, ["site.css"], ["site.js"])


@functools.cache
def _templates() -> jinja2.Environment:
    return page_templates(
        anchor=anchor,
        benchmark_title=benchmark_title,
        dots_scale=dots_scale,
        draw_dots=draw_dots,
        draw_trend=draw_trend,
        faster_columns=_FASTER_COLUMNS,
        file_of_benchmark=_file_of,
        improvement_columns=_IMPROVEMENT_COLUMNS,
        latest_name=_latest_name,
        link=_link,
        method=OLYMPIC_INTERVAL,
        means=MEANS,
        metrics=METRICS,
        public_links=_public_links,
        sizes=_SIZES,
        standing_of=standing_of,
    )


def _file_of(benchmarks: Sequence[BenchmarkPage], result: Official) -> str:
    """Return the file of the benchmark of ``result``; "" if it has no page."""
    return next((each.file for each in benchmarks if each.name == _latest_name(result)), "")
