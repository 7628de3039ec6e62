"""``hybridperf score``: compute times to train with intervals, and MLPerf's official scores."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format, add_jobs
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.log.rounds import find_packages, read_package
from hybridperf.parallel_map import parallel_map
from hybridperf.report.tables import metrics_markdown, score_rows, scores_csv, write_scores
from hybridperf.report.terminal import scores_text
from hybridperf.rules.check import Judged, compared, judge_result
from hybridperf.run.folder import environment_refusal
from hybridperf.score.official import official_of
from hybridperf.score.ranking import with_places
from hybridperf.score.rcp import read_rcp_set

if TYPE_CHECKING:
    import argparse

    from hybridperf.log.package import Package
    from hybridperf.score.official import Official
    from hybridperf.score.rcp import Mode, RcpSet

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf score runs
hybridperf score submissions/hybridperf --out scores
hybridperf score training_results_v2.1 --rcp-set rcps --rcp compat"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf score``."""
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="result folder, submission or round of MLPerf (default: runs)",
    )
    parser.add_argument(
        "--rcp-set",
        type=Path,
        metavar="FOLDER",
        help="folder of MLCommons' reference convergence points, rcps_<benchmark>.json",
    )
    parser.add_argument(
        "--rcp",
        choices=("rules", "compat", "published"),
        help="factor as the rules say, as the official tool computes, or as the round published "
        "in scaling.json (default: rules; published for a round in a folder "
        "training_results_v<round>, without --rcp-set)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to write scores.csv, scores.json and scores.parquet to",
    )
    parser.add_argument("--columns", action="store_true", help="say what every column means")
    add_format(parser, "text", "json", "csv")
    add_jobs(parser)


def execute(options: argparse.Namespace) -> ExitCode:
    """Print one row per result, and write the scores to ``--out`` if it is given."""
    if options.columns:
        print_line(metrics_markdown())
        return ExitCode.OK
    references = read_rcp_set(options.rcp_set) if options.rcp_set else None
    scored = partial(_score, references=references, asked=options.rcp)
    pairs = list(parallel_map(scored, find_packages(options.path), options.jobs))
    judged = compared(each for _, each in pairs)
    results = with_places(
        [replace(each, trust=found.trust) for (each, _), found in zip(pairs, judged, strict=True)]
    )
    if not results:
        finding = Finding(
            "score.path",
            "results in <org>/results/<system>/<benchmark>",
            "none",
            "make some with 'hybridperf run'",
            path=str(options.path),
        )
        raise UserError(finding, ExitCode.ENVIRONMENT)
    written = _write(results, options.out) if options.out else []
    if options.format == "json":
        print_json(score_rows(results))
    elif options.format == "csv":
        print_line(scores_csv(score_rows(results)).rstrip("\n"))
    else:
        print_line(scores_text(results, terminal_width()))
        for path in written:
            print_line(str(path))
    return ExitCode.OK


def _score(
    package: Package, references: RcpSet | None, asked: Mode | None
) -> tuple[Official, Judged]:
    """Score a result and find its rung; results of MLPerf's rounds are self-reported."""
    result = read_package(package)
    official = official_of(result, references, asked)
    judged = judge_result(result) if official.own else Judged(package.name)
    # No row shows the curves, which would take much memory for many results.
    bare = tuple(replace(run, curve=()) for run in official.score.runs)
    return replace(official, score=replace(official.score, runs=bare)), judged


def _write(results: list[Official], folder: Path) -> list[Path]:
    try:
        written = write_scores(score_rows(results), folder)
    except OSError as error:
        raise environment_refusal(error, folder) from error
    if not any(path.suffix == ".parquet" for path in written):
        remedy = "pip install 'hybridperf[tables]'"
        sys.stderr.write(f"hybridperf: no scores.parquet, which needs pyarrow: {remedy}\n")
    return written
