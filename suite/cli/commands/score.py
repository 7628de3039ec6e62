"""``hybridperf score``: times to train with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line, print_table
from suite.findings import Finding, visible
from suite.logs.package import find_results, read_result
from suite.refusal import ExitCode, Refusal
from suite.scores.interval import METHOD
from suite.scores.score import ResultScore, score_result
from suite.scores.table import score_row

if TYPE_CHECKING:
    import argparse

__all__ = ["execute", "print_scores"]


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
        print_scores(scores)
    return ExitCode.OK


def print_scores(scores: list[ResultScore]) -> None:
    """Print ``scores`` as a table for people."""
    heads = (
        "task",
        "plan",
        "time to train",
        "95 % interval",
        "samples",
        "samples/s",
        "bubble",
        "exposed",
        "runs",
    )
    print_table(heads, (_cells(score) for score in scores))
    print_line(f"time to train: olympic mean; interval: {METHOD}; samples/s: end to end")


def _cells(score: ResultScore) -> tuple[str, ...]:
    row, interval = score_row(score), score.interval_s
    missed = score.olympic_mean_s is not None and row["olympic_mean_s"] is None
    return (
        visible(score.benchmark),
        visible(score.plan or score.system),
        "missed" if missed else _number(row["olympic_mean_s"], "{:.2f} s"),
        f"{interval.low:.2f} to {interval.high:.2f}" if interval else "-",
        _number(score.samples_to_target, "{:,.0f}"),
        _number(score.throughput_samples_per_s, "{:,.0f}"),
        _number(score.bubble, "{:.1%}"),
        _number(score.exposed_communication, "{:.1%}"),
        f"{len(score.completed)} of {score.required_runs or '?'}",
    )


def _number(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)
