"""``hybridperf run``: make a result."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line, terminal_width
from suite.cli.progress import Narrator
from suite.findings import Finding, Severity
from suite.logs.package import Package, read_result
from suite.plan import ParallelPlan
from suite.refusal import ExitCode, Refusal
from suite.report.terminal import scores_text
from suite.rules.check import check_result
from suite.runs.ending import Outcome
from suite.runs.folder import left_behind, sealed_runs
from suite.runs.follower import follow
from suite.runs.leader import Leader, leading
from suite.runs.nodes import Nodes
from suite.runs.order import Order, check_order, package_of
from suite.runs.series import run_series
from suite.scores.score import score_result
from suite.scores.table import score_row
from suite.systems.describe import describe
from suite.tasks.data.place import DATA_VARIABLE
from suite.tasks.overrides import parse_overrides
from suite.tasks.registry import named_task
from suite.tasks.task import read_task

if TYPE_CHECKING:
    import argparse

__all__ = ["execute", "make_runs", "order_of"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Make the runs that are missing, then score and check the result; or help node 0 to."""
    nodes = Nodes.named(options.nodes, options.node_rank, options.rendezvous)
    order = dataclasses.replace(order_of(options), nodes=nodes)
    if nodes.rank > 0:
        if not options.json:
            where = f"node {nodes.rank} of {nodes.count} at {nodes.rendezvous}"
            print_line(f"{order.task().name} under {order.plan}: {where} follows node 0")
        return follow(order)
    with leading(order) as leader:
        leader.status = _execute(options, order, leader)
        return leader.status


def _execute(options: argparse.Namespace, order: Order, leader: Leader) -> ExitCode:
    result = read_result(make_runs(order, quiet=options.json, leader=leader))
    score, findings = score_result(result), check_result(result)
    if options.json:
        print_json(
            score_row(score)
            | {
                "folder": str(result.package.folder),
                "times_to_train_s": [
                    run.time_to_train_s if run.completion == "reached" else None
                    for run in score.runs
                ],
                "loader_samples_per_s": score.loader_samples_per_s,
                "appetite_samples_per_s": score.appetite_samples_per_s,
                "findings": [finding.as_json() for finding in findings],
            }
        )
    else:
        print_line(scores_text([score], terminal_width()))
        for finding in findings:
            print_line(f"{finding.severity}: {finding.sentence}")
        print_line(f"'hybridperf report {order.out}' writes the page.")
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if any(finding.rule != "result.run_count" for finding in errors):
        return ExitCode.INVALID
    missed = any(run.completion == "missed" for run in score.runs)
    return ExitCode.MISSED if missed else ExitCode.OK


def make_runs(order: Order, *, quiet: bool, leader: Leader | None = None) -> Package:
    """Make the runs of ``order`` that are missing; return where they stand."""
    _refuse_first(check_order(order))
    package = package_of(order, describe(nodes=order.nodes.count))
    if not quiet:
        print_line(f"{order.task().name} under {order.plan}: {_standing(package, order.runs)}")
    with Narrator(quiet=quiet) as narrator:
        for _ in run_series(order, narrator, leader):
            pass
    return package


def order_of(options: argparse.Namespace) -> Order:
    """Return what the command line asks for; this process and its runs find data as it says."""
    if options.data_dir is not None:
        os.environ[DATA_VARIABLE] = str(options.data_dir.absolute())
    path = named_task(options.task)
    task = read_task(path)
    return Order(
        task_path=path,
        plan=ParallelPlan.parse(options.plan),
        runs=options.runs or task.runs.count,
        out=options.out,
        org=options.org,
        trainer=options.trainer,
        system=options.system,
        division=options.division,
        overrides=tuple(parse_overrides(task, options.overrides).items()),
    )


def _refuse_first(findings: list[Finding]) -> None:
    if findings:
        raise Refusal(findings[0], ExitCode.USAGE)


def _standing(package: Package, wanted: int) -> str:
    """Say what is already there."""
    if not package.folder.is_dir():
        return f"{wanted} runs to make in {package.folder}"
    runs = sealed_runs(package)
    done = sum(Outcome(str(run.fact("outcome"))).completed for run in runs)
    ended, begun = len(runs) - done, len(left_behind(package))
    parts = [f"{min(done, wanted)} of {wanted} runs done"]
    parts += [f"{ended} ended early and counted"] if ended else []
    parts += [f"{begun} left behind by an earlier command"] if begun else []
    verb = "complete" if done >= wanted and not begun else "going on"
    return f"{verb} in {package.folder}: {', '.join(parts)}"
