"""``hybridperf score``: compute times to train with intervals, and MLPerf's official scores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.commands.check import named_ruleset
from hybridperf.cli.options import add_format, add_jobs
from hybridperf.cli.printing import print_json, print_line, say_barred, terminal_width
from hybridperf.errors import ExitCode
from hybridperf.report.frames import write_scores
from hybridperf.report.judgement import found_packages, judged_scores, no_results
from hybridperf.report.tables import metrics_markdown, score_rows, scores_csv
from hybridperf.report.terminal import scores_text
from hybridperf.run.folder import environment_refusal
from hybridperf.score.history import with_context
from hybridperf.score.ranking import with_places
from hybridperf.score.rcp import read_rcp_sets

if TYPE_CHECKING:
    import argparse

    from hybridperf.findings import Finding
    from hybridperf.score.official import Official

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf score runs
hybridperf score submissions/hybridperf --out scores
hybridperf score training_results_v2.1 --rcp-set rcps --rcp compat
hybridperf score training_results_v* --format csv"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf score``."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="*",
        metavar="PATH",
        default=[Path("runs")],
        help="result folders, submissions or rounds of MLPerf (default: runs)",
    )
    parser.add_argument(
        "--ruleset",
        metavar="NAME",
        help="rules to judge MLPerf's results by that are in no folder training_results_v<round>, "
        "such as mlperf-training-2.1.0, or the file of a ruleset",
    )
    parser.add_argument(
        "--rcp-set",
        type=Path,
        metavar="FOLDER",
        help="folder of MLCommons' reference convergence points, rcps_<benchmark>.json, or of "
        "folders v<round> with them",
    )
    parser.add_argument(
        "--rcp",
        choices=("rules", "compat", "published"),
        help="factor as the rules say, as the official tool of the round computes, or as the round "
        "published in scaling.json (default: rules; published for a round in a folder "
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
    """Print one row per result, and write the scores to ``--out`` if it is given.

    Exit status 4 if a file or folder cannot be read.
    """
    if options.columns:
        print_line(metrics_markdown())
        return ExitCode.OK
    references = read_rcp_sets(options.rcp_set) if options.rcp_set else None
    barred: list[Finding] = []
    packages = found_packages(options.paths, barred)
    named = None if options.ruleset is None else named_ruleset(options.ruleset)
    scores = judged_scores(packages, references, options.rcp, options.jobs, barred, named)
    results = with_context(with_places(scores))
    if not results and not barred:
        raise no_results(options.paths)
    written = _write(results, options.out) if options.out else []
    if options.format == "json":
        print_json(score_rows(results))
    elif options.format == "csv":
        print_line(scores_csv(score_rows(results)).rstrip("\n"))
    else:
        print_line(scores_text(results, terminal_width()))
        for path in written:
            print_line(str(path))
    return say_barred(barred)


def _write(results: list[Official], folder: Path) -> list[Path]:
    try:
        written = write_scores(score_rows(results), folder)
    except OSError as error:
        raise environment_refusal(error, folder) from error
    if not any(path.suffix == ".parquet" for path in written):
        remedy = "pip install 'hybridperf[tables]'"
        sys.stderr.write(
            f"hybridperf: no scores.parquet, which needs pandas and pyarrow: {remedy}\n"
        )
    return written
