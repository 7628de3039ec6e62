"""``hybridperf score``: times to train with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line, terminal_width
from suite.findings import Finding
from suite.logs.package import find_results, read_result
from suite.refusal import ExitCode, Refusal
from suite.report.terminal import scores_text
from suite.scores.score import score_result
from suite.scores.table import score_row

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Print one row a result."""
    scores = [score_result(read_result(package)) for package in find_results(options.path)]
    if not scores:
        finding = Finding(
            "score.path",
            "results in <org>/results/<system>/<benchmark>",
            "none",
            "make some with 'hybridperf run'",
            path=str(options.path),
        )
        raise Refusal(finding, ExitCode.ENVIRONMENT)
    if options.json:
        print_json([score_row(score) for score in scores])
    else:
        print_line(scores_text(scores, terminal_width()))
    return ExitCode.OK
