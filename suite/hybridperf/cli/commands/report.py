"""``hybridperf report``: write the leaderboard, or the site over rounds of MLPerf."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_jobs, add_roots
from hybridperf.cli.printing import print_line, say_barred
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log.package import folders_without_result
from hybridperf.report.judgement import read_entries
from hybridperf.report.page import write_report
from hybridperf.report.site import build_site, published_packages
from hybridperf.run.folder import environment_refusal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from hybridperf.claims.verdict import CheckedClaim
    from hybridperf.findings import Finding
    from hybridperf.report.judgement import JudgedResult

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf report runs
hybridperf report submissions --out reports
hybridperf report training_results_v* --out mlperf
hybridperf report submissions --out reports --claims claims/*.toml --root rounds --root ."""

_SITE: Final = Path("mlperf_report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf report``."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="*",
        metavar="PATH",
        default=[Path("runs")],
        help="submission, folder of submissions, or rounds of MLPerf (default: runs)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the pages (default: report in the folder of submissions; for rounds of "
        f"MLPerf, {_SITE})",
    )
    parser.add_argument(
        "--claims",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="files of claims to check: their page, claims.html, stands beside the board",
    )
    add_roots(parser)
    add_jobs(parser)


def execute(options: argparse.Namespace) -> ExitCode:
    """Write the pages and print their paths.

    Exit status 3 if results were left out, which stderr names; 4 if something cannot be read.
    """
    for path in options.paths:
        if not path.is_dir():
            raise UserError.of(
                "report.path",
                "a folder of submissions, or a round of MLPerf",
                "none",
                "make one with 'hybridperf run'",
                path=str(path),
                exit_code=ExitCode.ENVIRONMENT,
            )
    barred: list[Finding] = []
    left_out: list[str] = []
    published = published_packages(options.paths, barred)
    if not published and len(options.paths) > 1:
        raise UserError.of(
            "report.path",
            "one folder of submissions, or rounds in folders training_results_v<round>",
            f"{len(options.paths)} folders",
            "name the folder that holds them",
            path=str(options.paths[1]),
        )
    checked = _checked(options) if options.claims else []
    out = options.out or (_SITE if published else options.paths[0] / "report")
    try:
        if published:
            entries: list[JudgedResult] = []
            written = build_site(published, out, options.jobs, barred)
        else:
            entries = _entries_in(options.paths[0], barred)
            written = write_report(entries, options.paths[0], out, claims=bool(checked))
            left_out += _left_out(options.paths[0], entries)
        if checked:
            from hybridperf.claims.page import write_claims

            written += write_claims(checked, entries, out)
    except OSError as error:
        raise environment_refusal(error, out) from error
    for path in written:
        print_line(str(path))
    for line in left_out:
        sys.stderr.write(f"hybridperf: left out: {line}\n")
    if left_out:
        count = f"{len(left_out)} result{'s' if len(left_out) != 1 else ''}"
        remedy = f"'hybridperf check {visible(str(options.paths[0]))}' says why"
        sys.stderr.write(f"hybridperf: {count} left out of the boards; {remedy}.\n")
    return say_barred(barred) or (ExitCode.INVALID if left_out else ExitCode.OK)


def _checked(options: argparse.Namespace) -> list[CheckedClaim]:
    """Return the claims of the files of ``--claims``, checked."""
    # Imported late: projections take as long to import as all else here.
    from hybridperf.claims.check import check_claims

    return check_claims(options.claims, options.roots or [Path()])


def _entries_in(path: Path, barred: list[Finding]) -> list[JudgedResult]:
    """Return the results at or below ``path``.

    Raises:
        UserError: exit status 4 if there are none, and nothing that cannot be read.
    """
    entries = read_entries(path, barred)
    if not entries and not barred:
        raise UserError.of(
            "report.results",
            "results, in <org>/results/<system>/<benchmark>",
            "none",
            "make one with 'hybridperf run', or name the folder that holds some",
            path=str(path),
            exit_code=ExitCode.ENVIRONMENT,
        )
    return entries


def _left_out(path: Path, entries: Iterable[JudgedResult]) -> Iterator[str]:
    """Yield a line for each broken or disputed result, and each folder of logs that is none."""
    for entry in entries:
        if entry.standing in {"broken", "disputed"}:
            why = visible(entry.official.validity.why or entry.no_place)
            yield f"{entry.result.package.name}: {entry.standing}: {why}"
    for folder in folders_without_result(path):
        yield f"{visible(str(folder))}: logs in no folder <org>/results/<system>/<benchmark>"
