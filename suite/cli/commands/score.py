"""``hybridperf score``: times to train with intervals, and MLPerf's official scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line, terminal_width
from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.report.terminal import official_text, scores_text
from suite.scores.official import official_score
from suite.scores.published import find_scored, read_scored
from suite.scores.rcp_set import read_rcp_set
from suite.scores.score import score_result

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Print one row a result."""
    references = read_rcp_set(options.rcp_set) if options.rcp_set else None
    read = (read_scored(package) for package in find_scored(options.path))
    results = [
        official_score(result, score_result(result), references, options.rcp) for result in read
    ]
    if not results:
        finding = Finding(
            "score.path",
            "results in <org>/results/<system>/<benchmark>",
            "none",
            "make some with 'hybridperf run'",
            path=str(options.path),
        )
        raise Refusal(finding, ExitCode.ENVIRONMENT)
    if options.json:
        print_json([result.row() for result in results])
        return ExitCode.OK
    ours = [result.score for result in results if result.score.plan]
    theirs = [result for result in results if not result.score.plan]
    if ours:
        print_line(scores_text(ours, terminal_width()))
    if theirs:
        print_line(official_text(theirs, terminal_width()))
    return ExitCode.OK
