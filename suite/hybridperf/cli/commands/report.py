"""``hybridperf report``: write the leaderboard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.report.build import build_report
from hybridperf.run.folder import environment_refusal

if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf report runs
hybridperf report submissions --out reports"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf report``."""
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="submission, or folder of submissions (default: runs)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the pages (default: report inside the submission's folder)",
    )


def execute(options: argparse.Namespace) -> ExitCode:
    """Write the leaderboard's files and print their paths."""
    if not options.path.is_dir():
        finding = Finding(
            "report.path",
            "a folder of submissions",
            "none",
            "make one with 'hybridperf run'",
            path=str(options.path),
        )
        raise UserError(finding, ExitCode.ENVIRONMENT)
    out = options.out or options.path / "report"
    try:
        for path in build_report(options.path, out):
            print_line(str(path))
    except OSError as error:
        raise environment_refusal(error, out) from error
    return ExitCode.OK
