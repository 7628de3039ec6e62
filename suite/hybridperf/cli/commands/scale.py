"""``hybridperf scale``: measure how efficiently more devices speed up training, and why."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.commands.run import exit_status, make_runs
from hybridperf.cli.options import add_format, add_run_arguments, whole_number
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.cli.scaling_requests import on_devices, scaling_requests
from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import only_result
from hybridperf.log.rounds import find_packages, read_package
from hybridperf.report.scaling import scaling_csv, scaling_json, scaling_text
from hybridperf.rules.check import check_result
from hybridperf.run.ending import RunOutcome
from hybridperf.run.files import canonical_json, write_atomically
from hybridperf.run.folder import environment_refusal
from hybridperf.run.request import require_valid
from hybridperf.score.scaling import CLAIM, claim_of, scale, side_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package, Result
    from hybridperf.score.scaling import Scaling

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf scale resnet/laptop --devices 1,2
hybridperf scale resnet/laptop --devices 1,2,4 --plan dp=1 --plan dp=2 --plan dp=2,pp=2 --weak
hybridperf scale --from runs/a/results/one/bert-laptop,runs/a/results/two/bert-laptop"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf scale``."""
    parser.add_argument("task", nargs="?", help="name of the task, such as resnet/laptop")
    parser.add_argument(
        "--devices",
        type=_counts,
        metavar="N,N,...",
        help="numbers of devices to make a result on each of, such as 1,2,4",
    )
    parser.add_argument(
        "--from",
        action="append",
        metavar="A,B,...",
        dest="paths",
        help="folders of results that are there, ours or a round's, instead of making them; "
        "the base is the one on fewest devices, the first of equal ones",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--strong",
        action="store_const",
        const="strong",
        dest="kind",
        help="the same global batch on all numbers of devices (default where runs are made)",
    )
    kind.add_argument(
        "--weak",
        action="store_const",
        const="weak",
        dest="kind",
        help="the same batch for each device: the global batch grows with their number",
    )
    parser.add_argument(
        "--cause",
        help="what explains efficiencies above 100 %%, such as samples; accepted where the split "
        "bears it out",
    )
    parser.add_argument(
        "--runs", type=whole_number, help="completed runs of each result (default: the task's)"
    )
    parser.add_argument(
        "--plan",
        action="append",
        help="parallel plan, whose dp is set to what the devices allow (default: dp=1); or, "
        "given once for each number of devices, their plans",
    )
    add_run_arguments(parser, Path("scaling"))
    add_format(parser, "text", "json", "csv")


def execute(options: argparse.Namespace) -> ExitCode:
    """Make the results for ``--devices``, or read those of ``--from``, and print how they scale."""
    made = options.paths is None
    packages = _made(options) if made else [_result_in(path) for path in _named(options)]
    scaling = scale(
        [side_of(read_package(package)) for package in packages],
        kind=options.kind,
        cause=options.cause,
    )
    if made:
        _claim(scaling)
    results = [read_package(package) for package in packages] if made else []
    findings = [finding for result in results for finding in check_result(result)]
    if options.format == "json":
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
    """Yield the folders of ``--from``, which commas separate unless a folder's name has them."""
    for given in ("task", "devices", "plan", "runs", "overrides", "trainer", "system"):
        if getattr(options, given):
            name = {"task": "a task", "overrides": "--set"}.get(given, f"--{given}")
            reason = f"expected either --from or runs to make, found --from and {name}"
            raise UserError(f"{reason}; drop one of them.", ExitCode.USAGE)
    for text in options.paths:
        if Path(text).is_dir():
            yield Path(text)
        else:
            yield from map(Path, text.split(","))


def _result_in(path: Path) -> Package:
    return only_result(find_packages(path), path, "scale.path")


def _made(options: argparse.Namespace) -> list[Package]:
    """Validate all requests, then make the missing runs, on the fewest devices first."""
    requests = scaling_requests(options)
    for count, request in requests.items():
        with on_devices(count):
            require_valid(request)
    packages = []
    quiet = options.format != "text"
    for count, request in requests.items():
        with contextlib.redirect_stdout(sys.stderr if quiet else sys.stdout), on_devices(count):
            packages.append(make_runs(request, quiet=quiet))
    return packages


def _claim(scaling: Scaling) -> None:
    """Write each result's scaling claim beside it, and remove an outdated one."""
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
    outcomes = {run.fact("outcome") for result in results for run in result.runs}
    return exit_status(findings, missed=RunOutcome.TARGET_MISSED in outcomes)


def _counts(text: str) -> tuple[int, ...]:
    counts = text.split(",")
    if not all(each.isascii() and each.isdigit() and 0 < int(each) <= 10**6 for each in counts):
        raise argparse.ArgumentTypeError(
            f"expected numbers of devices divided by commas, such as 1,2,4, found {text!r:.80}"
        )
    return tuple(map(int, counts))
