"""``hybridperf rcp``: make reference convergence points."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from typing import TYPE_CHECKING

from suite.cli.commands.run import make_runs, order_of
from suite.cli.printing import print_json, print_line
from suite.findings import Finding, Severity
from suite.logs.package import find_results, read_result
from suite.refusal import ExitCode, Refusal
from suite.rules.check import check_result
from suite.scores.rcp_entry import new_point, runs_of_point
from suite.scores.score import score_result
from suite.tasks.registry import named_task
from suite.tasks.task import read_task

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from suite.logs.package import Package

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Print a point, made of the runs in a folder, or of runs that are made now."""
    task = read_task(named_task(options.task))
    if options.folder is None:
        order = dataclasses.replace(order_of(options), runs=runs_of_point(task))
        with contextlib.redirect_stdout(sys.stderr):  # standard output is the point's alone
            package = make_runs(order, quiet=False)
    else:
        package = _only_result(options.folder)
    result = read_result(package)
    point = new_point(result, score_result(result), task)
    for finding in check_result(result):
        if finding.severity is Severity.ERROR:
            raise Refusal(finding, ExitCode.INVALID)
    if options.format == "toml":
        print_line(point.as_toml())
    else:
        print_json(point.as_entry())
    return ExitCode.OK


def _only_result(folder: Path) -> Package:
    packages = find_results(folder)
    if len(packages) != 1:
        finding = Finding(
            "rcp.path",
            "one result, in <org>/results/<system>/<benchmark>",
            f"{len(packages)} results" if packages else "none",
            "name the folder of one result",
            path=str(folder),
        )
        raise Refusal(finding, ExitCode.USAGE if packages else ExitCode.ENVIRONMENT)
    return packages[0]
