"""``hybridperf report``: the leaderboard as pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.cli.printing import print_line
from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.report.build import build_report
from suite.runs.folder import environment_refusal

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Write the pages and say where they are."""
    if not options.path.is_dir():
        finding = Finding(
            "report.path",
            "a folder of submissions",
            "none",
            "make one with 'hybridperf run'",
            path=str(options.path),
        )
        raise Refusal(finding, ExitCode.ENVIRONMENT)
    out = options.out or options.path / "report"
    try:
        for path in build_report(options.path, out):
            print_line(str(path))
    except OSError as error:
        raise environment_refusal(error, out) from error
    return ExitCode.OK
