"""``hybridperf report``: write the leaderboard, or the site over rounds of MLPerf."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_jobs
from hybridperf.cli.printing import print_line, say_barred
from hybridperf.errors import ExitCode, UserError
from hybridperf.report.page import build_report
from hybridperf.report.site import build_site, published_packages
from hybridperf.run.folder import environment_refusal

if TYPE_CHECKING:
    import argparse

    from hybridperf.findings import Finding

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf report runs
hybridperf report submissions --out reports
hybridperf report training_results_v* --out mlperf"""

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
    add_jobs(parser)


def execute(options: argparse.Namespace) -> ExitCode:
    """Write the pages and print their paths; exit status 4 if something cannot be read."""
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
    published = published_packages(options.paths, barred)
    if not published and len(options.paths) > 1:
        raise UserError.of(
            "report.path",
            "one folder of submissions, or rounds in folders training_results_v<round>",
            f"{len(options.paths)} folders",
            "name the folder that holds them",
            path=str(options.paths[1]),
        )
    out = options.out or (_SITE if published else options.paths[0] / "report")
    try:
        written = (
            build_site(published, out, options.jobs, barred)
            if published
            else build_report(options.paths[0], out, barred)
        )
    except OSError as error:
        raise environment_refusal(error, out) from error
    for path in written:
        print_line(str(path))
    return say_barred(barred)
