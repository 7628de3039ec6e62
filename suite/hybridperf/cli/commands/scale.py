"""``hybridperf scale``: measure scaling efficiency, and explain losses."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.commands.run import exit_status, make_runs, request_of
from hybridperf.cli.options import add_format, add_run_arguments, whole_number
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_packages, only_result, read_package
from hybridperf.plan import ParallelPlan
from hybridperf.report.scaling import scaling_csv, scaling_json, scaling_text
from hybridperf.rules.check import check_result
from hybridperf.run.ending import RunOutcome
from hybridperf.run.request import require_valid
from hybridperf.score.scaling import scale, side_of
from hybridperf.system.accelerators import usable_devices
from hybridperf.system.describe import describe, entry_name, system_name
from hybridperf.system.host import restrict_cores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package, Result
    from hybridperf.run.request import RunRequest

__all__ = ["EXAMPLES", "add_arguments", "execute", "on_devices", "scaling_requests"]

EXAMPLES: Final = """\
hybridperf scale resnet/laptop --devices 1,2
hybridperf scale resnet/laptop --devices 1,2,4 --plan dp=1 --plan dp=2 --plan dp=2,pp=2 --weak
hybridperf scale --from runs/a/results/one/bert-laptop,runs/a/results/two/bert-laptop"""
_FEWEST_RUNS: Final = 3
_BATCH: Final = "training.global_batch_size"


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
        help="folders of existing results, ours or a round's, instead of making them; "
        "the base is the first result on the fewest devices",
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
    """Make or read the results, and print their scaling efficiency."""
    made = options.paths is None
    packages = _made(options) if made else [_result_in(path) for path in _named(options)]
    results = [read_package(package) for package in packages]
    scaling = scale([side_of(result) for result in results], kind=options.kind)
    findings = [each for result in results for each in check_result(result)] if made else []
    if options.format == "json":
        shown = {"findings": [finding.as_json() for finding in findings]}
        print_json(scaling_json(scaling) | shown)
    elif options.format == "csv":
        print_line(scaling_csv(scaling).rstrip("\n"))
    else:
        print_line(scaling_text(scaling, terminal_width()))
        for finding in findings:
            print_line(f"{finding.severity}: {finding.sentence}")
    return _status(results, findings) if made else ExitCode.OK


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


def on_devices(count: int) -> contextlib.AbstractContextManager[None]:
    """Limit runs to ``count`` cores, because threads of a rank would use the remaining ones too.

    On accelerators this is a no-op: a run uses one per rank.
    """
    return contextlib.nullcontext() if usable_devices().kind == "gpu" else restrict_cores(count)


def scaling_requests(options: argparse.Namespace) -> dict[int, RunRequest]:
    """Return the request for each number of devices, in ascending order.

    Raises:
        UserError: exit status 2 if devices, runs or plans do not make a scaling series.
    """
    if options.task is None or options.devices is None:
        reason = "expected a task with --devices N,N,..., or results with --from"
        raise UserError(f"{reason}, found neither; see 'hybridperf scale --help'.", ExitCode.USAGE)
    counts: tuple[int, ...] = options.devices
    if len(set(counts)) < max(2, len(counts)):
        found = ",".join(map(str, counts))
        raise _error("two numbers of devices or more, each once", found, "write --devices 1,2")
    if options.runs is not None and options.runs < _FEWEST_RUNS:
        expected = f"{_FEWEST_RUNS} runs or more"
        raise _error(expected, str(options.runs), f"write --runs {_FEWEST_RUNS}")
    plans = _plans(counts, options.plan or ["dp=1"])
    return {count: _request_of_count(options, count, plans[count]) for count in sorted(counts)}


def _plans(counts: tuple[int, ...], texts: list[str]) -> dict[int, ParallelPlan]:
    plans = [ParallelPlan.parse(text) for text in texts]
    if len(plans) == 1:
        return {count: _spread(plans[0], count) for count in counts}
    if len(plans) != len(counts):
        expected = f"one plan, or one for each of {len(counts)} numbers of devices"
        raise _error(
            expected, f"{len(plans)}", "give --plan as often as there are numbers, or once"
        )
    for count, plan in zip(counts, plans, strict=True):
        if plan.ranks != count:
            expected = f"a plan of {count} ranks for {count} devices"
            raise _error(
                expected, f"{plan} of {plan.ranks}", "name plans in the order of --devices"
            )
    return dict(zip(counts, plans, strict=True))


def _spread(plan: ParallelPlan, count: int) -> ParallelPlan:
    """Return ``plan`` with ``dp`` set so that it has ``count`` ranks."""
    each = plan.ranks // plan.dp
    if count % each:
        expected = f"numbers of devices that a replica's {each} ranks divide"
        remedy = "choose others, or give one --plan for each number"
        raise _error(expected, f"{count} with plan {plan}", remedy)
    return dataclasses.replace(plan, dp=count // each)


def _request_of_count(options: argparse.Namespace, count: int, plan: ParallelPlan) -> RunRequest:
    request = request_of(argparse.Namespace(**vars(options) | {"plan": str(plan)}))
    weak = options.kind == "weak"
    if weak:
        overrides = dict(request.overrides)
        batch = request.task().training.global_batch_size
        fewest = min(options.devices)
        if batch * count % fewest:
            expected = f"a global batch that {fewest} devices divide, as --weak keeps their share"
            raise _error(expected, str(batch), f"change it with --set {_BATCH}=N")
        overrides[_BATCH] = batch * count // fewest
        request = dataclasses.replace(request, overrides=tuple(overrides.items()))
    if weak or request.system is not None:
        with on_devices(count):
            machine = request.system or system_name(describe())
        name = entry_name(machine, f"{plan.slug}{'-weak' if weak else ''}")
        request = dataclasses.replace(request, system=name)
    return request


def _error(expected: str, found: str, remedy: str) -> UserError:
    return UserError.of("scale.requests", expected, found, remedy)
