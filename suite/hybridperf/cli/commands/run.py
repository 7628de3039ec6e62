"""``hybridperf run``: make the runs of a result, then score and check it."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import (
    PLAN_HELP,
    add_format,
    add_nodes,
    add_run_arguments,
    positive_seconds,
    whole_number,
)
from hybridperf.cli.planning import AUTO, HERE, fastest_here, plans_json, print_plans, setting_of
from hybridperf.cli.printing import print_json, print_line, print_stage, terminal_width
from hybridperf.cli.progress import ProgressReporter
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, Severity
from hybridperf.plan import ParallelPlan
from hybridperf.plan.fields import FIELDS
from hybridperf.projection.search import Ranking
from hybridperf.report.judgement import judged_entries
from hybridperf.report.terminal import scores_text
from hybridperf.rules.verdict import word_of
from hybridperf.run.consistency import node_facts
from hybridperf.run.folder import completed_runs, sealed_runs, unsealed_attempts
from hybridperf.run.node_follower import take_part
from hybridperf.run.nodes import Nodes, NodeServer, gather_nodes
from hybridperf.run.projection import is_projectable, projection_source, with_projected_cuts
from hybridperf.run.request import RunRequest, package_of, require_valid
from hybridperf.run.run_set import make_run_set
from hybridperf.run.sandbox import sandbox_facts
from hybridperf.run.slurm import SbatchFile, follow, sbatch_options
from hybridperf.score.metrics import row_of
from hybridperf.system.describe import describe
from hybridperf.system.noise import NoiseMeter
from hybridperf.tasks.data.samples import export_data_folder
from hybridperf.tasks.overrides import apply_overrides, parse_overrides
from hybridperf.tasks.registry import in_suite, read_task, resolve_task

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from hybridperf.log.package import Package
    from hybridperf.projection.units import UnitCounts
    from hybridperf.run.channel import NodeFacts
    from hybridperf.tasks.task import Task

__all__ = ["EXAMPLES", "add_arguments", "execute", "exit_status", "make_runs", "request_of"]

_NOISE_S: Final = 0.5  #: interval before the runs in which noise is measured
EXAMPLES: Final = """\
hybridperf run resnet/laptop
hybridperf run resnet/laptop --plan dp=2,pp=2 --runs 5
hybridperf run resnet/laptop --plan pp=2,schedule=gpipe,microbatches=4
hybridperf run resnet/laptop --set optimizer.lr=0.05
hybridperf run resnet/laptop --plan dp=4 --nodes 2 --node-rank 0 --rendezvous node0:29500
hybridperf run resnet50/cluster --plan dp=16 --nodes 2 --launcher slurm --slurm time=8:00:00"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf run``."""
    parser.add_argument("task", help="task, such as resnet/laptop, or a TOML file with one")
    parser.add_argument(
        "--runs",
        type=whole_number,
        help="completed runs that the result should have (default: the task's)",
    )
    parser.add_argument(
        "--plan",
        default="dp=1",
        help=f"{PLAN_HELP}. auto: the plan that is projected to be fastest on the devices here, "
        "of all plans that are equivalent to single-process training",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="check the request, print the projection of its plan, and make no runs",
    )
    add_run_arguments(parser, Path("runs"))
    parser.add_argument(
        "--initial",
        type=Path,
        metavar="FILE",
        help="safetensors file of weights to begin from, under the names of the suite, torchvision "
        "or transformers; in the open division (default: the task's, or random weights)",
    )
    parser.add_argument(
        "--elastic",
        nargs="?",
        const="",
        metavar="PLAN;PLAN",
        help="go on from the last checkpoint after the loss of a rank or node, each time under the "
        "next of these plans that fits what is left (default: the plan with fewer replicas); saves "
        "a checkpoint each evaluation",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=positive_seconds,
        default=0.0,
        metavar="SECONDS",
        help="also save checkpoints during training, so often (default: only at evaluations, where "
        "the task or --elastic asks for them)",
    )
    add_nodes(
        parser,
        "machines that share the plan's ranks equally; each is given the same command, with --out "
        "on storage that they share (default: 1)",
    )
    parser.add_argument(
        "--launcher",
        choices=("slurm",),
        help="slurm: have Slurm give this command on --nodes machines: write an sbatch file to "
        "--out, submit it, and show its job until it ends",
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="option of sbatch for --launcher slurm, such as time=8:00:00",
    )
    parser.add_argument(
        "--print",
        action="store_true",
        help="with --launcher slurm: print the sbatch file, and submit nothing",
    )
    parser.add_argument(
        "--mode",
        choices=("sandboxed", "open"),
        default="sandboxed",
        help="open: run the trainer outside of the sandbox, so that it may read the data or write "
        "the log itself; its results prove less (default: sandboxed, where kernel and data allow)",
    )
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Make the missing runs, then score and check the result; other nodes than 0 take part."""
    if options.launcher == "slurm":
        return _run_under_slurm(options)
    if options.slurm or options.print:
        found = "--print" if options.print else "--slurm"
        remedy = f"add --launcher slurm or drop {found}"
        raise UserError.of("slurm.launcher", "--launcher slurm", f"{found} alone", remedy)
    nodes = Nodes.named(options.nodes, options.node_rank, options.rendezvous)
    if nodes.count > 1 and options.plan == AUTO:
        raise UserError.of(
            "run.plan",
            "a plan where there are several nodes",
            f"--plan {AUTO}",
            "name a plan, such as hybridperf plan recommends",
        )
    if nodes.count > 1 and options.dry_run:
        expected = "one node with --dry-run, which projects from measurements of this machine"
        remedy = "use hybridperf plan with the --system of the nodes"
        raise UserError.of("run.dry_run", expected, f"--nodes {nodes.count}", remedy)
    if nodes.rank > 0:
        return take_part(nodes, options.out, lambda: _check_node(options, nodes))
    # Before anything is refused: the other nodes are told why.
    with gather_nodes(nodes, options.out) as peers:
        request = _request_on(nodes, options)
        if options.dry_run:
            return _project(options, request)
        peers.status = _execute(options, request, peers)
        return peers.status


def _run_under_slurm(options: argparse.Namespace) -> ExitCode:
    """Submit a job that gives this command on its nodes, and follow it until it ends."""
    settled = {
        "--node-rank": options.node_rank is not None,
        "--rendezvous": options.rendezvous is not None,
        "--dry-run": options.dry_run,
        f"--plan {AUTO}": options.plan == AUTO,
    }
    if given := next((option for option, is_given in settled.items() if is_given), None):
        expected = "options that hold on any node, with --launcher slurm"
        raise UserError.of("slurm.launcher", expected, given, "drop it")
    nodes = Nodes(options.nodes or 1)
    request = dataclasses.replace(request_of(options), nodes=nodes, mode=options.mode)
    file = SbatchFile(request, tuple(sys.argv[1:]), sbatch_options(options.slurm))
    if options.print:
        sys.stdout.write(file.text())
        return ExitCode.OK
    job = file.submit()
    with ProgressReporter(quiet=options.format == "json") as reporter:
        return follow(file, job, print_stage, reporter)


def _request_on(nodes: Nodes, options: argparse.Namespace) -> RunRequest:
    """Return the request that the options describe on this node."""
    asked = dataclasses.replace(
        request_of(options),
        nodes=nodes,
        mode=options.mode,
        elastic=options.elastic,
        checkpoint_s=options.checkpoint_every,
        initial=options.initial,
    )
    request = with_projected_cuts(asked)
    if request != asked and options.format != "json":
        print_line(f"{asked.plan}: its step is projected to be shortest under {request.plan}")
    return request


def _check_node(options: argparse.Namespace, nodes: Nodes) -> tuple[Task, NodeFacts]:
    """Return the task, and what this node states to node 0.

    Raises:
        UserError: as `request_of` and `require_valid`.
    """
    request = _request_on(nodes, options)
    task = request.task()
    if options.format != "json":
        where = f"node {nodes.rank} of {nodes.count} at {nodes.rendezvous}"
        print_line(f"{task.name} under {request.plan}: {where} joins node 0")
    require_valid(request)
    return task, node_facts(request, task, describe(nodes=nodes.count))


def _project(options: argparse.Namespace, request: RunRequest) -> ExitCode:
    """Print the projection of the plan of ``request`` on this machine."""
    require_valid(request)
    task, plan = request.task(), request.plan
    _warn_of_trainer(request, quiet=options.format == "json")
    setting = setting_of(
        request.task_path, task, system=HERE, devices=plan.ranks, precision=plan.precision
    )
    shown = setting.shown(Ranking([setting.projection(plan)], considered=1, projected=1))
    if options.format == "json":
        print_json(plans_json(shown))
    else:
        print_plans(shown)
        if plan.pp > 1:
            print_line(
                f"stages: {_stages(setting.work.units.units, shown.equivalent.best[0].cuts)}"
            )
        print_line(f"Without --dry-run: {request.command}")
    return ExitCode.OK


def _stages(units: Sequence[UnitCounts], cuts: tuple[int, ...]) -> str:
    """Return the first and last unit of each stage, for a message."""
    ends = ((units[first], units[stop - 1]) for first, stop in pairwise((0, *cuts, len(units))))
    return " | ".join(
        one.name if one is other else f"{one.name} to {other.name}" for one, other in ends
    )


def _execute(options: argparse.Namespace, request: RunRequest, peers: NodeServer) -> ExitCode:
    package = make_runs(request, quiet=options.format == "json", peers=peers)
    (entry,) = judged_entries([package])
    official, findings = entry.official, entry.findings
    if options.format == "json":
        print_json(
            row_of(official)
            | {
                "folder": str(package.folder),
                "times_to_train_s": [
                    run.time_to_train_s if run.completion == "reached" else None
                    for run in official.score.runs
                ],
                "findings": [finding.as_json() for finding in findings],
            }
        )
    else:
        print_line(scores_text([official], terminal_width()))
        for finding in findings:
            print_line(f"{word_of(finding)}: {finding.sentence}")
        print_line(f"'hybridperf report {request.out}' writes the page.")
    missed = any(run.completion == "missed" for run in official.score.runs)
    return exit_status(findings, missed=missed)


def exit_status(findings: Iterable[Finding], *, missed: bool) -> ExitCode:
    """Return the exit status of runs with these ``findings``; ``missed``: one missed its target.

    A provisional result is no error.
    """
    if any(word_of(finding) == Severity.ERROR for finding in findings):
        return ExitCode.INVALID
    return ExitCode.MISSED if missed else ExitCode.OK


def make_runs(request: RunRequest, *, quiet: bool, peers: NodeServer | None = None) -> Package:
    """Make the missing runs of ``request``; return the location of the result."""
    require_valid(request)
    package = package_of(request, describe(nodes=request.nodes.count))
    if not quiet:
        print_line(
            f"{request.task().name} under {request.plan}: {_standing(package, request.runs)}"
        )
        if hint := _projection_hint(package, request):
            print_line(hint)
    _warn_of_trainer(request, quiet=quiet)
    if not quiet:
        _warn_of_noise()
    with ProgressReporter(quiet=quiet) as progress:
        for _ in make_run_set(request, progress, peers):
            pass
    return package


def _warn_of_trainer(request: RunRequest, *, quiet: bool) -> None:
    """Print one line, before the trainer starts, if it runs without the sandbox it should have."""
    facts = sandbox_facts(request.mode, request.nodes.count)
    if request.mode == "sandboxed" and facts["kind"] == "none":
        whose = "the trainer runs with your permissions, so run only a trainer that you trust"
        stream = sys.stderr if quiet else sys.stdout
        stream.write(f"no sandbox, since {facts['reason']}: {whose}\n")


def _warn_of_noise() -> None:
    """Print one line if others use this machine, which makes runs slower."""
    if reasons := NoiseMeter().read(_NOISE_S).reasons():
        print_line(f"busy machine: {', '.join(reasons)}; runs will take longer than without")


def request_of(options: argparse.Namespace) -> RunRequest:
    """Return the request that the options describe, and export ``--data-dir`` to this process.

    Raises:
        UserError: exit status 2 if the task, the plan or an override cannot be read.
    """
    export_data_folder(options.data_dir)
    path = resolve_task(options.task)
    task = read_task(path)
    overrides = parse_overrides(task, options.overrides)
    if options.plan == AUTO:
        plan = fastest_here(path, apply_overrides(task, overrides))
    else:
        plan = ParallelPlan.parse(options.plan)
    return RunRequest(
        task_path=path,
        plan=plan,
        runs=options.runs or task.runs.count,
        out=options.out,
        org=options.org,
        trainer=options.trainer,
        system=options.system,
        division=options.division,
        keep_weights=options.keep_weights,
        publish_errors=options.publish_errors,
        overrides=tuple(overrides.items()),
    )


def _projection_hint(package: Package, request: RunRequest) -> str:
    """Return a hint on projecting the steps of missing runs; "" if there is nothing to do."""
    runs = sealed_runs(package) if package.folder.is_dir() else []
    missing = len(completed_runs(runs)) < request.runs
    if not missing or request.nodes.count > 1 or not is_projectable(request):
        return ""
    if projection_source(request) is not None:
        return ""
    own = not in_suite(request.task_path)
    task = shlex.quote(str(request.task_path)) if own else request.task().name
    command = f"hybridperf plan {task} --devices {request.plan.ranks}"
    if request.plan.precision != FIELDS["precision"].default:
        command += f" --precision {request.plan.precision}"
    return f"its steps are not projected: '{command}' measures this machine for that, once"


def _standing(package: Package, wanted: int) -> str:
    """Return the number of existing runs as the clause of a message."""
    if not package.folder.is_dir():
        return f"{wanted} {'run' if wanted == 1 else 'runs'} to make in {package.folder}"
    runs = sealed_runs(package)
    done = len(completed_runs(runs))
    ended, begun = len(runs) - done, len(unsealed_attempts(package))
    parts = [f"{min(done, wanted)} of {wanted} runs done"]
    parts += [f"{ended} ended early and counted"] if ended else []
    parts += [f"{begun} left behind by an earlier command"] if begun else []
    verb = "complete" if done >= wanted and not begun else "continuing"
    return f"{verb} in {package.folder}: {', '.join(parts)}"
