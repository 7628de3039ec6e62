"""Write the pages of the site; they work without scripts."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from hybridperf.report.figures import UNKNOWN
from hybridperf.report.page import digest, environment, source
from hybridperf.report.site.drawings import dots_scale, draw_dots, draw_history
from hybridperf.report.site.model import anchor, benchmark_pages, round_pages
from hybridperf.score.metrics import METRICS
from hybridperf.score.ranking import MEANS, standing_of
from hybridperf.score.statistics import OLYMPIC_INTERVAL
from hybridperf.tasks.mlperf import lineage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import jinja2

    from hybridperf.report.site.model import BenchmarkPage, RoundPage
    from hybridperf.score.official import Official

__all__ = ["site_pages"]

#: columns of a round's tables, after the name of the system and the dots of its runs
_OF_ROUND: Final = (
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
_OF_IMPROVEMENT: Final = (
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


def site_pages(results: Sequence[Official]) -> Iterator[tuple[str, str]]:
    """Yield the file name and text of every page of ``results``, which have places and contexts."""
    rounds, benchmarks = round_pages(results), benchmark_pages(results)
    shared = {"rounds": rounds, "benchmarks": benchmarks}
    latest = rounds[-1].edition
    improved = [each for page in benchmarks for each in page.improved]
    of_latest = [each for each in improved if each.score.edition == latest]
    yield "index.html", _page("site_index", latest=latest, improved=of_latest, **shared)
    for benchmark in benchmarks:
        yield benchmark.file, _page("site_benchmark", page=benchmark, **shared)
    for one in rounds:
        yield one.file, _page("site_round", page=one, facets=_facets(one), **shared)


def _facets(page: RoundPage) -> Markup:
    """Return the style by which the choice of an accelerator hides the rows of others."""
    chosen = (f"body:has(#a{nth}:checked)" for nth in range(len(page.accelerators)))
    rules = (
        f'{one} tr[data-a]:not([data-a="{nth}"]),'
        f'{one} section.results:not(:has([data-a="{nth}"])){{display:none}}'
        for nth, one in enumerate(chosen)
    )
    return Markup("").join(map(Markup, rules))


def _page(template: str, **values: object) -> str:
    style, script = source("page.css") + source("site.css"), source("page.js")
    facets = values.setdefault("facets", "")
    styles = " ".join(f"'{digest(each)}'" for each in (style, str(facets)) if each)
    policy = (
        f"default-src 'none'; style-src {styles}; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    page = _environment().get_template(f"{template}.html.j2")
    return page.render(
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        **values,
    )


@functools.cache
def _environment() -> jinja2.Environment:
    return environment(
        anchor=anchor,
        dots_scale=dots_scale,
        draw_dots=draw_dots,
        draw_history=draw_history,
        file_of_benchmark=_file_of,
        method=OLYMPIC_INTERVAL,
        means=MEANS,
        metrics=METRICS,
        minor=_MINOR,
        of_improvement=_OF_IMPROVEMENT,
        of_round=_OF_ROUND,
        standing_of=standing_of,
        unknown=UNKNOWN,
    )


def _file_of(benchmarks: Sequence[BenchmarkPage], result: Official) -> str:
    """Return the file of the benchmark of ``result``; "" if it has no page."""
    name = lineage(result.score.benchmark, result.score.edition)
    return next((each.file for each in benchmarks if each.name == name), "")
