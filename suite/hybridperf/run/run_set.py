"""Make a result of the requested number of runs, continuing where an earlier command stopped."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, Protocol

from hybridperf.errors import ExitCode, UserError
from hybridperf.log.writer import LogClock
from hybridperf.run.attempt import Attempt, Surroundings, disagreement
from hybridperf.run.consistency import (
    node_facts,
    require_same_configuration,
    require_same_request,
    settle_system,
    settle_task,
)
from hybridperf.run.elastic import plans_after_losses, ranks_per_node
from hybridperf.run.ending import RunOutcome, machine_start, stop_on_signals
from hybridperf.run.files import remove_folder
from hybridperf.run.folder import (
    attempt_folder,
    completed_runs,
    environment_refusal,
    locked,
    output_file,
    require_unchanged,
    sealed_runs,
    sweep,
    unsealed_attempts,
)
from hybridperf.run.nodes import NodeServer
from hybridperf.run.projection import project_run
from hybridperf.run.provenance import code_hashes
from hybridperf.run.request import package_of, request_config
from hybridperf.run.rescore import PredictorServer
from hybridperf.run.resume import resumable_step, same_request
from hybridperf.run.sandbox import mode_of, sandbox_facts
from hybridperf.run.seeds import draw_seed
from hybridperf.run.spec import RunSpec
from hybridperf.run.supervise import Observer
from hybridperf.system.describe import describe_with_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.log.package import Package
    from hybridperf.run.attempt import Sealed
    from hybridperf.run.request import RunRequest
    from hybridperf.tasks.task import Task

__all__ = ["RunSetObserver", "make_run_set"]

#: outcomes of an unsealed attempt after which the same command makes further runs
_REPEATED: Final = frozenset({RunOutcome.INTERRUPTED, RunOutcome.ENVIRONMENT})


class RunSetObserver(Observer, Protocol):
    """Receives the progress of a set of runs."""

    def begin(self, done: int, wanted: int, task: Task) -> None:
        """Handle the start of an attempt, with ``done`` of ``wanted`` runs completed."""

    def sealed(self, sealed: Sealed) -> None:
        """Handle an attempt that was sealed."""


def make_run_set(
    request: RunRequest, observer: RunSetObserver, peers: NodeServer | None = None
) -> Iterator[Sealed]:
    """Yield each attempt when it is sealed, until the result has the requested number of runs.

    Attempts left unsealed by an earlier command are resumed or sealed first. The replacement of
    an attempt that did not complete reuses its seed, so that aborting an unlucky run does not
    draw another seed. ``peers`` is required if the request has more than one node.

    Raises:
        UserError: exit status 2 if the folder holds another configuration or nodes differ, 3 if
            the harness cannot reproduce the reported quality, 4 if a run fails, 5 if interrupted.
    """
    task, description = request.task(), describe_with_torch(nodes=request.nodes.count)
    package = package_of(request, description)
    peers = peers or NodeServer(request.nodes, request.out)
    predictors = PredictorServer()
    with locked(package), stop_on_signals() as stop, contextlib.closing(predictors):
        around = Surroundings(package, request.command, stop, observer, peers, predictors)
        try:
            peers.preflight(node_facts(request, task, description), task, stop)
            yield from _carry_out(request, task, description, around, observer)
        except OSError as error:
            raise environment_refusal(error, package.folder) from error
        except MemoryError as error:
            again = "give it more, as with ulimit -v, and the same command again"
            message = f"{package.folder}: not enough memory for the harness itself; {again}."
            raise UserError(message, ExitCode.ENVIRONMENT) from error


def _carry_out(
    request: RunRequest,
    task: Task,
    description: dict[str, object],
    around: Surroundings,
    observer: RunSetObserver,
) -> Iterator[Sealed]:
    package, stop, peers = around.package, around.stop, around.peers
    sweep(package)
    settle_system(package, description, request)
    require_same_configuration(sealed_runs(package), request, task)
    around.sealed.update(require_unchanged(package))
    sealed_before = {run.number for run in sealed_runs(package)}
    for number in unsealed_attempts(package):
        begun = (attempt_folder(package, number) / "run.json").exists()
        if not begun or number in sealed_before:
            remove_folder(attempt_folder(package, number))
            continue
        sealed = _settle(number, request, task, around, observer)
        observer.sealed(sealed)
        yield sealed
        if sealed.ending.outcome not in _REPEATED or stop.signal is not None:
            _require_completed(sealed, package)
    task_path, projection = settle_task(package, request, task), project_run(request)
    config, nodes = request_config(request), request.nodes.count
    goes_on = plans_after_losses(request.elastic, request.plan, config, nodes)
    while True:
        runs = sealed_runs(package)
        completed = completed_runs(runs)
        if len(completed) >= request.runs:
            return
        if stop.signal is not None:
            raise UserError(
                f"{len(completed)} of {request.runs} runs done in {package.folder}, "
                f"stopped by {stop.signal.name}; give the same command again to continue.",
                ExitCode.INTERRUPTED,
            )
        number = runs[-1].number + 1 if runs else 0
        observer.begin(len(completed), request.runs, task)
        seed, provenance = draw_seed(package, runs, completed)
        spec = RunSpec(
            folder=str(attempt_folder(package, number)),
            attempt=number,
            task_path=task_path,
            trainer=request.launched,
            overrides=dict(request.overrides),
            plan=str(request.plan),
            seed=seed,
            org=request.org,
            platform=package.system,
            division=request.division,
            clock=LogClock(),
            machine_start=machine_start(),
            code=code_hashes(request.launched),
            nodes=nodes,
            rendezvous=peers.rendezvous(),
            provenance=provenance,
            keep_weights=request.keep_weights,
            publish_errors=request.publish_errors,
            elastic=None if goes_on is None else tuple(map(str, goes_on)),
            ranks_per_node=ranks_per_node(config, nodes),
            checkpoint_s=request.checkpoint_s,
            mode=mode_of(task, request.mode),
            sandbox=sandbox_facts(request.mode, nodes),
            projection=projection,
            initial=request.initial_weights(),
        )
        sealed = Attempt(spec, around).run()
        observer.sealed(sealed)
        yield sealed
        _require_completed(sealed, package)


def _settle(
    number: int,
    request: RunRequest,
    task: Task,
    around: Surroundings,
    observer: RunSetObserver,
) -> Sealed:
    """Seal an attempt left unsealed, after resuming it from a checkpoint if that is possible.

    Raises:
        UserError: as `make_run_set`.
    """
    attempt = Attempt.read(number, around)
    spec = attempt.spec
    regular = spec.log.is_file() and not spec.log.is_symlink()
    if regular and not disagreement(spec, number):  # else it is sealed as crashed
        require_same_request(spec, request)
    unended = not spec.ending.exists() and same_request(spec, request)
    if unended and (step := resumable_step(spec)) is not None:
        done = len(completed_runs(sealed_runs(around.package)))
        observer.begin(done, request.runs, task)
        return attempt.resume(step, around.peers.rendezvous())
    return attempt.finish(number)


def _require_completed(sealed: Sealed, package: Package) -> None:
    """Raise the error that ends the command unless the attempt completed."""
    outcome, reason = sealed.ending.outcome, sealed.ending.reason
    if outcome.completed:
        return
    what = f"attempt {sealed.number} in {package.folder} is sealed as {outcome}: {reason}"
    if outcome is RunOutcome.ENVIRONMENT:
        again = "give the same command again to repeat the run"
        raise UserError(f"{what}; {again}.", ExitCode.ENVIRONMENT)
    if outcome is RunOutcome.INTERRUPTED:
        raise UserError(f"{what}; give the same command again to continue.", ExitCode.INTERRUPTED)
    if outcome is RunOutcome.REFUSED:
        rescoring = sealed.rescoring
        assert rescoring is not None
        found = "none" if rescoring.quality is None else f"{rescoring.quality:.4f}"
        raise UserError.of(
            "result.rescoring",
            f"the reported quality {rescoring.reported:.4f} (within {rescoring.tolerance:g}) "
            "when the harness scores the saved model again",
            f"{found} ({reason})",
            "make the trainer save the model that it evaluates",
            path=str(sealed.log),
            exit_code=ExitCode.INVALID,
        )
    output = output_file(package, sealed.number)
    raise UserError(f"{what}; the output of the ranks is in {output}.", ExitCode.ENVIRONMENT)
