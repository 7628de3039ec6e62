"""``hybridperf rcp``: make reference convergence points."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.commands.run import make_runs, request_of
from hybridperf.cli.options import PLAN_HELP, add_run_arguments
from hybridperf.cli.printing import print_json, print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Severity
from hybridperf.log.package import find_results, only_result, read_result
from hybridperf.rules.check import check_result
from hybridperf.score.rcp_entry import new_point, runs_of_point
from hybridperf.score.score import score_result
from hybridperf.tasks.registry import read_task, resolve_task

if TYPE_CHECKING:
    import argparse


__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf rcp make resnet/laptop > rcps_resnet-laptop.json
hybridperf rcp make resnet/laptop --from reference_runs --format toml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf rcp``."""
    parser.add_argument("action", choices=("make",), help="make: print a new point")
    parser.add_argument("task", help="name of the task, such as resnet/laptop")
    parser.add_argument(
        "--from",
        type=Path,
        metavar="FOLDER",
        dest="folder",
        help="folder of one result with twice the task's runs (default: make them)",
    )
    parser.add_argument(
        "--format",
        choices=("json", "toml"),
        default="json",
        help="a file for --rcp-set, or the lines of the task's file (default: json)",
    )
    parser.add_argument("--plan", default="dp=1", help=PLAN_HELP)
    add_run_arguments(parser, Path("reference_runs"))
    parser.set_defaults(runs=None)


def execute(options: argparse.Namespace) -> ExitCode:
    """Print a reference convergence point of the runs in a folder, or of new runs."""
    task = read_task(resolve_task(options.task))
    if options.folder is None:
        request = dataclasses.replace(request_of(options), runs=runs_of_point(task))
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for the point only
            package = make_runs(request, quiet=False)
    else:
        package = only_result(find_results(options.folder), options.folder, "rcp.path")
    result = read_result(package)
    point = new_point(result, score_result(result), task)
    for finding in check_result(result):
        if finding.severity is Severity.ERROR:
            raise UserError(finding, ExitCode.INVALID)
    if options.format == "toml":
        print_line(point.as_toml())
    else:
        print_json(point.as_entry())
    return ExitCode.OK
