"""``hybridperf score``: times to train with intervals, and MLPerf's official scores."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line, terminal_width
from suite.findings import Finding
from suite.jobs import spread
from suite.logs.rounds import ROUND, find_packages, read_package
from suite.refusal import ExitCode, Refusal
from suite.report.score_files import ranks_of, score_frame, score_rows, scores_csv, write_scores
from suite.report.terminal import official_text, own_text
from suite.runs.folder import environment_refusal
from suite.scores.official import official_score
from suite.scores.rcp_set import read_rcp_set
from suite.scores.score import score_result

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from suite.logs.package import Package
    from suite.scores.official import Official
    from suite.scores.rcp import Mode
    from suite.scores.rcp_set import RcpSet

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Print one row a result, and write them where a folder is named."""
    references = read_rcp_set(options.rcp_set) if options.rcp_set else None
    scored = partial(_score, references=references, asked=options.rcp)
    results = list(spread(scored, find_packages(options.path), options.jobs))
    if not results:
        finding = Finding(
            "score.path",
            "results in <org>/results/<system>/<benchmark>",
            "none",
            "make some with 'hybridperf run'",
            path=str(options.path),
        )
        raise Refusal(finding, ExitCode.ENVIRONMENT)
    written = _write(results, options.out) if options.out else []
    if options.json or options.format == "json":
        print_json(score_rows(results))
    elif options.format == "csv":
        print_line(scores_csv(score_frame(score_rows(results))).rstrip("\n"))
    else:
        _print_tables(results)
        for path in written:
            print_line(str(path))
    return ExitCode.OK


def _score(package: Package, references: RcpSet | None, asked: Mode | None) -> Official:
    # What a round published has a factor; what is still to be submitted is to be tested.
    published = references is None and ROUND.fullmatch(package.root.name)
    result = read_package(package)
    score = score_result(result)
    official = official_score(
        result, score, references, asked or ("published" if published else "rules")
    )
    # Of all results the curves together would be large, and no row has them.
    bare = tuple(replace(run, curve=()) for run in score.runs)
    return replace(official, score=replace(score, runs=bare))


def _write(results: list[Official], folder: Path) -> list[Path]:
    try:
        return write_scores(score_rows(results), folder)
    except OSError as error:
        raise environment_refusal(error, folder) from error


def _print_tables(results: list[Official]) -> None:
    ranks = ranks_of(results)
    for text, own in ((own_text, True), (official_text, False)):
        places = [index for index, each in enumerate(results) if bool(each.score.plan) is own]
        if places:
            shown = [results[place] for place in places], [ranks[place] for place in places]
            print_line(text(*shown, terminal_width()))
