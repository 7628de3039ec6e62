"""Make a result: as many runs as asked for, going on where an earlier command stopped."""

from __future__ import annotations

import dataclasses
import secrets
import shutil
from typing import TYPE_CHECKING, Protocol

from suite.findings import Finding
from suite.logs.clock import LogClock
from suite.refusal import ExitCode, Refusal
from suite.runs.attempt import Sealed, finish, resume_attempt, run_attempt
from suite.runs.consistency import require_same_configuration, settle_system, settle_task
from suite.runs.ending import Outcome
from suite.runs.folder import (
    attempt_folder,
    environment_refusal,
    left_behind,
    locked,
    output_file,
    sealed_runs,
    sweep,
)
from suite.runs.leader import Leader
from suite.runs.order import package_of
from suite.runs.provenance import code_hashes
from suite.runs.resume import machine_start, resumable_epoch, same_order
from suite.runs.spec import RunSpec
from suite.runs.supervise import Observer, StopRequest, stop_on_signals
from suite.systems.describe import describe_with_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from suite.logs.package import Package, SealedRun
    from suite.runs.order import Order
    from suite.tasks.task import Task

__all__ = ["SeriesObserver", "run_series"]


class SeriesObserver(Observer, Protocol):
    """Who wants to know how a series of runs goes."""

    def begin(self, done: int, wanted: int, task: Task) -> None:
        """Take note that an attempt begins, with ``done`` of ``wanted`` runs completed."""

    def sealed(self, sealed: Sealed) -> None:
        """Take note of a finished attempt."""


def run_series(
    order: Order, observer: SeriesObserver, leader: Leader | None = None
) -> Iterator[Sealed]:
    """Yield each attempt as it is sealed, until the result has the runs asked for.

    Attempts left behind by an earlier command are sealed first; completed runs count, and the
    replacement of an attempt that was ended gets its seed again, so that ending an unlucky run
    draws no luckier one. ``leader`` is needed where the order has more than one node.

    Raises:
        Refusal: exit status 2 where the folder holds another configuration or nodes differ, 3 where
            a model's quality did not come back, 4 where a run cannot be carried out, 5 when
            interrupted.
    """
    task, description = order.task(), describe_with_torch(nodes=order.nodes.count)
    package = package_of(order, description)
    leader = leader or Leader(order.nodes, order.out)
    with locked(package), stop_on_signals() as stop:
        try:
            leader.gather(order, task, description, stop)
            yield from _carry_out(order, task, package, description, stop, observer, leader)
        except OSError as error:
            raise environment_refusal(error, package.folder) from error


def _carry_out(
    order: Order,
    task: Task,
    package: Package,
    description: dict[str, object],
    stop: StopRequest,
    observer: SeriesObserver,
    leader: Leader,
) -> Iterator[Sealed]:
    sweep(package)
    settle_system(package, description, order)
    require_same_configuration(sealed_runs(package), order, task)
    sealed_before = {run.number for run in sealed_runs(package)}
    for number in left_behind(package):
        begun = (attempt_folder(package, number) / "run.json").exists()
        if not begun or number in sealed_before:
            shutil.rmtree(attempt_folder(package, number))
            continue
        sealed = _settle(number, order, task, package, stop, observer, leader)
        observer.sealed(sealed)
        yield sealed
        if sealed.ending.outcome is not Outcome.INTERRUPTED or stop.signal is not None:
            _go_on(sealed, package)
    task_path = settle_task(package, order, task)
    while True:
        runs = sealed_runs(package)
        completed = [run for run in runs if Outcome(str(run.fact("outcome"))).completed]
        if len(completed) >= order.runs:
            return
        if stop.signal is not None:
            raise Refusal(
                f"{len(completed)} of {order.runs} runs done in {package.folder}, "
                f"stopped by {stop.signal.name}; give the same command again to go on.",
                ExitCode.INTERRUPTED,
            )
        number = runs[-1].number + 1 if runs else 0
        observer.begin(len(completed), order.runs, task)
        spec = RunSpec(
            folder=str(attempt_folder(package, number)),
            attempt=number,
            task_path=task_path,
            trainer=order.launched,
            overrides=dict(order.overrides),
            plan=str(order.plan),
            seed=_seed(runs, {run.fact("seed") for run in completed}),
            org=order.org,
            platform=package.system,
            division=order.division,
            clock=LogClock(),
            machine_start=machine_start(),
            code=code_hashes(order.launched),
            nodes=order.nodes.count,
            rendezvous=order.nodes.rendezvous,
        )
        leader.prepare(task, stop)
        sealed = run_attempt(spec, package, order.command, stop, observer, leader)
        observer.sealed(sealed)
        yield sealed
        _go_on(sealed, package)


def _settle(
    number: int,
    order: Order,
    task: Task,
    package: Package,
    stop: StopRequest,
    observer: SeriesObserver,
    leader: Leader,
) -> Sealed:
    """Seal an attempt that was left behind; one that can go on from a checkpoint does so first."""
    folder = attempt_folder(package, number)
    spec = RunSpec.read(folder / "run.json")
    ended = (folder / "ending.json").exists()
    if not ended and same_order(spec, order) and (epoch := resumable_epoch(spec)) is not None:
        observer.begin(_completed(package), order.runs, task)
        spec = dataclasses.replace(spec, rendezvous=order.nodes.rendezvous)  # maybe elsewhere now
        leader.prepare(task, stop)
        return resume_attempt(spec, package, order.command, stop, observer, leader, epoch)
    return finish(package, number, order.command, stop)


def _completed(package: Package) -> int:
    runs = sealed_runs(package)
    return sum(Outcome(str(run.fact("outcome"))).completed for run in runs)


def _seed(runs: tuple[SealedRun, ...], used: set[object]) -> int:
    """Draw a seed, or give an ended attempt's seed its next chance."""
    for run in runs:
        seed = run.fact("seed")
        if isinstance(seed, int) and seed not in used:
            return seed
    while (drawn := secrets.randbelow(2**31)) in used:
        pass
    return drawn


def _go_on(sealed: Sealed, package: Package) -> None:
    """Stop the series after an attempt that did not complete."""
    outcome, reason = sealed.ending.outcome, sealed.ending.reason
    if outcome.completed:
        return
    what = f"attempt {sealed.number} in {package.folder} is sealed as {outcome}: {reason}"
    if outcome is Outcome.INTERRUPTED:
        raise Refusal(f"{what}; give the same command again to go on.", ExitCode.INTERRUPTED)
    if outcome is Outcome.REFUSED:
        rescoring = sealed.rescoring
        assert rescoring is not None
        found = "none" if rescoring.quality is None else f"{rescoring.quality:.4f}"
        finding = Finding(
            "result.rescoring",
            f"the reported quality {rescoring.reported:.4f} (within {rescoring.tolerance:g}) "
            "when the harness scores the saved model again",
            f"{found} ({reason})",
            "make the trainer save the model that it evaluates",
            path=str(sealed.log),
        )
        raise Refusal(finding, ExitCode.INVALID)
    output = output_file(package, sealed.number)
    raise Refusal(f"{what}; what the ranks printed is in {output}.", ExitCode.ENVIRONMENT)
