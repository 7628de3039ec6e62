"""Write the site over rounds of MLPerf: a page for each round and benchmark, and an index.

The pages work without scripts.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.log.package import edition_of
from hybridperf.report.judgement import found_packages, judged_scores
from hybridperf.report.page import page_templates, render_page, write_files
from hybridperf.report.svg import dots_scale, draw_dots, draw_history
from hybridperf.report.tables import score_rows, scores_csv, scores_json
from hybridperf.score.history import with_context
from hybridperf.score.metrics import METRICS
from hybridperf.score.ranking import MEANS, standing_of, with_places
from hybridperf.score.statistics import OLYMPIC_INTERVAL
from hybridperf.tasks.mlperf import lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import jinja2

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package
    from hybridperf.score.official import Official

__all__ = [
    "BenchmarkPage",
    "RoundPage",
    "RoundTable",
    "anchor",
    "build_site",
    "published_packages",
    "site_files",
]

#: columns of a round's tables, after the name of the system and the dots of its runs
_ROUND_COLUMNS: Final = (
    "official_minutes",
    "interval_low_s",
    "olympic_minutes",
    "rcp_factor",
    "accelerator_minutes",
    "efficiency_time",
    "efficiency_throughput",
    "samples_to_target",
    "throughput_samples_per_s",
    "runs",
    "dropped",
    "logs",
)
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
_MINOR: Final = frozenset(  #: columns that narrow screens leave out
    {"olympic_minutes", "efficiency_throughput", "samples_to_target", "throughput_samples_per_s"}
)

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
    shared = {"rounds": rounds, "benchmarks": benchmarks}
    latest = rounds[-1].edition
    index = {
        "latest": latest,
        "best": {page.name: page.best for page in benchmarks},
        "improved": [
            each for page in benchmarks for each in page.improved if each.score.edition == latest
        ],
    }
    yield "index.html", _page("site_index", shared | index)
    for benchmark in benchmarks:
        yield benchmark.file, _page("site_benchmark", shared | {"page": benchmark})
    for one in rounds:
        yield one.file, _page("site_round", shared | {"page": one}, _facets(one))
    rows = score_rows(results)
    yield "scores.csv", scores_csv(rows)
    yield "scores.json", scores_json(rows)


# What the pages hold


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
class BenchmarkPage:
    """One benchmark over the rounds, in the closed division."""

    name: str  #: latest name of the benchmark
    former: tuple[str, ...]  #: earlier names of the benchmark
    best: Mapping[str, Official]  #: the fastest result by round, in order of the rounds
    by_submitter: BestResults  #: fastest results
    by_accelerator: BestResults  #: fastest results
    frugal: BestResults  #: results of fewest accelerator-minutes, by accelerator
    improved: tuple[Official, ...]  #: results with an improvement, latest round first

    @property
    def file(self) -> str:
        """Return the file name of the page."""
        return f"benchmark-{_slug(self.name)}.html"


def anchor(result: Official) -> str:
    """Return the HTML id of a result on the page of its round."""
    score = result.score
    return f"r-{_digest(score.org, score.system, score.benchmark)}"


def _round_pages(results: Sequence[Official]) -> list[RoundPage]:
    """Return the page of every round of ``results``, in order."""
    pages = []
    for edition in _in_order(each.score.edition for each in results):
        groups: dict[tuple[str, str], list[Official]] = {}
        for each in results:
            if each.score.edition == edition:
                groups.setdefault((each.score.benchmark, each.division), []).append(each)
        tables = (RoundTable(*key, tuple(sorted(groups[key], key=_rank))) for key in sorted(groups))
        pages.append(RoundPage(edition, tuple(tables)))
    return pages


def _benchmark_pages(results: Sequence[Official]) -> list[BenchmarkPage]:
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
    best = _best(results, _minutes)
    editions = list(best)
    return BenchmarkPage(
        name=name,
        former=tuple(sorted({each.score.benchmark for each in results} - {name})),
        best=best,
        by_submitter=_best_by(lambda each: each.score.org, results, _minutes),
        by_accelerator=_best_by(lambda each: each.accelerator, results, _minutes),
        frugal=_best_by(
            lambda each: each.accelerator, frugal, lambda each: each.accelerator_minutes or math.inf
        ),
        improved=tuple(
            sorted(improved, key=lambda each: (-editions.index(each.score.edition), _rank(each)))
        ),
    )


def _best_by(
    name: Callable[[Official], str],
    results: Iterable[Official],
    figure: Callable[[Official], float],
) -> BestResults:
    groups: dict[str, list[Official]] = {}
    for each in results:
        if name(each):
            groups.setdefault(name(each), []).append(each)
    return {each: _best(groups[each], figure) for each in sorted(groups, key=str.casefold)}


def _best(results: Iterable[Official], figure: Callable[[Official], float]) -> dict[str, Official]:
    """Return the result of the lowest ``figure`` by round, in order of the rounds."""
    best: dict[str, Official] = {}
    for each in sorted(results, key=figure):
        best.setdefault(each.score.edition, each)
    return {edition: best[edition] for edition in _in_order(best)}


def _in_order(editions: Iterable[str]) -> list[str]:
    """Return the distinct rounds ``editions`` in order."""
    return sorted(set(editions), key=lambda edition: tuple(map(int, edition.split("."))))


def _rank(result: Official) -> tuple[bool, float, str, str]:
    ranked = standing_of(result)[0] == "ranked"
    return not ranked, _minutes(result), result.score.org, result.score.system


def _minutes(result: Official) -> float:
    return result.minutes or math.inf


def _slug(name: str) -> str:
    plain = "".join(
        char if char.isascii() and (char.isalnum() or char == "_") else "-" for char in name
    )
    return plain if plain == name else f"{plain[:60]}-{_digest(name)}"


def _digest(*names: str) -> str:
    return hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()[:10]


# The pages


def _page(name: str, values: Mapping[str, object], more_style: str = "") -> str:
    template = _templates().get_template(f"{name}.html.j2")
    return render_page(template, values, ["site.css"], more_style)


def _facets(page: RoundPage) -> str:
    """Return the style by which the choice of an accelerator hides the rows of others."""
    choices = (f"body:has(#a{nth}:checked)" for nth in range(len(page.accelerators)))
    return "".join(
        f'{choice} tr[data-a]:not([data-a="{nth}"]),'
        f'{choice} section.results:not(:has([data-a="{nth}"])){{display:none}}'
        for nth, choice in enumerate(choices)
    )


@functools.cache
def _templates() -> jinja2.Environment:
    return page_templates(
        anchor=anchor,
        dots_scale=dots_scale,
        draw_dots=draw_dots,
        draw_history=draw_history,
        file_of_benchmark=_file_of,
        improvement_columns=_IMPROVEMENT_COLUMNS,
        method=OLYMPIC_INTERVAL,
        means=MEANS,
        metrics=METRICS,
        minor=_MINOR,
        round_columns=_ROUND_COLUMNS,
        standing_of=standing_of,
    )


def _file_of(benchmarks: Sequence[BenchmarkPage], result: Official) -> str:
    """Return the file of the benchmark of ``result``; "" if it has no page."""
    name = lineage(result.score.benchmark, result.score.edition)
    return next((each.file for each in benchmarks if each.name == name), "")
