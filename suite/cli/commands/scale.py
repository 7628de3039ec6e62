"""``hybridperf scale``: how much of more devices becomes speed, and why."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from suite.cli.commands.run import make_runs
from suite.cli.printing import print_json, print_line, terminal_width
from suite.cli.scaling_orders import on_devices, scaling_orders
from suite.findings import Finding, Severity
from suite.logs.rounds import find_packages, read_package
from suite.refusal import ExitCode, Refusal
from suite.report.scaling import scaling_csv, scaling_json, scaling_text
from suite.rules.check import check_result
from suite.runs.atomic import canonical_json, write_atomically
from suite.runs.ending import Outcome
from suite.runs.folder import environment_refusal
from suite.runs.order import check_order
from suite.scores.scaling import CLAIM, claim_of, scale, side_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from suite.logs.package import Package, Result
    from suite.scores.scaling import Scaling

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Make the results that are asked for, or read those named, and print how they scale."""
    made = options.paths is None
    packages = _made(options) if made else [_only_result(path) for path in _named(options)]
    scaling = scale(
        [side_of(read_package(package)) for package in packages],
        kind=options.kind,
        cause=options.cause,
    )
    if made:
        _claim(scaling)
    results = [read_package(package) for package in packages] if made else []
    findings = [finding for result in results for finding in check_result(result)]
    if options.json or options.format == "json":
        shown = {"findings": [finding.as_json() for finding in findings]}
        print_json(scaling_json(scaling) | shown)
    elif options.format == "csv":
        print_line(scaling_csv(scaling).rstrip("\n"))
    else:
        print_line(scaling_text(scaling, terminal_width()))
        for finding in findings:
            print_line(f"{finding.severity}: {finding.sentence}")
    return _status(results, findings)


def _named(options: argparse.Namespace) -> Iterator[Path]:
    """Yield the folders named; a comma divides them where it is not in the name of one."""
    for given in ("task", "devices", "plan", "runs", "overrides", "trainer", "system"):
        if getattr(options, given):
            name = {"task": "a task", "overrides": "--set"}.get(given, f"--{given}")
            reason = f"expected either --from or runs to make, found --from and {name}"
            raise Refusal(f"{reason}; drop one of them.", ExitCode.USAGE)
    for text in options.paths:
        if Path(text).is_dir():
            yield Path(text)
        else:
            yield from map(Path, text.split(","))


def _only_result(path: Path) -> Package:
    packages = find_packages(path)
    if len(packages) != 1:
        finding = Finding(
            "scale.path",
            "one result, in <org>/results/<system>/<benchmark>",
            f"{len(packages)} results" if packages else "none",
            "name the folder of one result",
            path=str(path),
        )
        raise Refusal(finding, ExitCode.USAGE if packages else ExitCode.ENVIRONMENT)
    return packages[0]


def _made(options: argparse.Namespace) -> list[Package]:
    """Make the runs that are missing, on fewest devices first, once all orders are in order."""
    orders = scaling_orders(options)
    for count, order in orders.items():
        with on_devices(count):
            findings = check_order(order)
        if findings:
            raise Refusal(findings[0], ExitCode.USAGE)
    packages = []
    quiet = options.json or options.format != "text"
    for count, order in orders.items():
        with contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout), on_devices(count):
            packages.append(make_runs(order, quiet=quiet))
    return packages


def _claim(scaling: Scaling) -> None:
    """Leave beside each result what it may claim; what an earlier command left, goes."""
    for scaled in scaling.results:
        path = scaled.side.package.folder / CLAIM
        try:
            if scaled.rated:
                write_atomically(path, canonical_json(claim_of(scaled)))
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise environment_refusal(error, path.parent) from error


def _status(results: list[Result], findings: list[Finding]) -> ExitCode:
    """Return the exit status that follows from the results made, as ``run`` does."""
    errors = {finding.rule for finding in findings if finding.severity is Severity.ERROR}
    if errors - {"result.run_count"}:
        return ExitCode.INVALID
    outcomes = {run.fact("outcome") for result in results for run in result.runs}
    return ExitCode.MISSED if Outcome.TARGET_MISSED in outcomes else ExitCode.OK
