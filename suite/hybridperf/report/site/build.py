"""Build the site over rounds of MLPerf."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.log.package import edition_of
from hybridperf.report.build import write_files
from hybridperf.report.judged import found_packages, judged_scores
from hybridperf.report.site.pages import site_pages
from hybridperf.report.tables import score_rows, scores_csv
from hybridperf.score.history import with_context
from hybridperf.score.ranking import with_places

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hybridperf.log.package import Package
    from hybridperf.score.official import Official

__all__ = ["build_site", "published_packages", "site_files"]


def published_packages(paths: Sequence[Path], barred: list[Finding] | None = None) -> list[Package]:
    """Return the results of published rounds at or below ``paths``; none if all are others.

    ``barred`` is that of `found_packages`.

    Raises:
        UserError: exit status 2 if there are results of both kinds.
    """
    packages = found_packages(paths, barred)
    published = [package for package in packages if edition_of(package)]
    if published and len(published) < len(packages):
        other = next(package for package in packages if not edition_of(package))
        finding = Finding(
            "report.path",
            "all results in folders training_results_v<round>, or none",
            f"{len(published)} of {len(packages)} in such folders",
            "name folders of one kind",
            path=other.name,
        )
        raise UserError(finding, ExitCode.USAGE)
    return published


def build_site(
    packages: Sequence[Package], out: Path, jobs: int = 1, barred: list[Finding] | None = None
) -> list[Path]:
    """Write the site over the rounds of ``packages`` to ``out``, and return its files.

    The output is deterministic, and each file is replaced atomically. ``barred`` is that of
    `judged_scores`.

    Raises:
        OSError: if ``out`` cannot be written.
    """
    results = with_context(with_places(judged_scores(packages, jobs=jobs, barred=barred)))
    return write_files(site_files(results), out)


def site_files(results: Sequence[Official]) -> Iterator[tuple[str, str]]:
    """Yield the name and text of every file of the site of ``results``."""
    rows = score_rows(results)
    yield from site_pages(results)
    yield "scores.csv", scores_csv(rows)
    yield "scores.json", json.dumps(rows, indent=1, allow_nan=False) + "\n"
