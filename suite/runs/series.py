"""Make a result: as many runs as asked for, going on where an earlier command stopped."""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from suite.findings import Finding
from suite.logs.clock import LogClock
from suite.logs.package import Package
from suite.plan import ChainFacts
from suite.refusal import ExitCode, Refusal
from suite.runs.atomic import canonical_json, write_atomically
from suite.runs.attempt import Sealed, finish, run_attempt
from suite.runs.ending import Outcome
from suite.runs.folder import (
    NAME,
    attempt_folder,
    environment_refusal,
    left_behind,
    locked,
    output_file,
    sealed_runs,
    sweep,
)
from suite.runs.provenance import code_facts, package_folder
from suite.runs.spec import RunSpec
from suite.runs.supervise import Observer, StopRequest, stop_on_signals
from suite.systems.describe import describe_with_torch
from suite.systems.devices import usable_devices
from suite.systems.name import system_name
from suite.tasks.data import check_data
from suite.tasks.overrides import apply_overrides, judge_division
from suite.tasks.task import read_task

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from suite.logs.package import SealedRun
    from suite.plan import ParallelPlan
    from suite.tasks.task import Division, Task

__all__ = ["Order", "SeriesObserver", "check_order", "package_of", "run_series"]

_RANKS_PER_CORE: Final = 4  #: more only measure the scheduler, and run out of memory


@dataclass(frozen=True, slots=True)
class Order:
    """What the user asked for."""

    task_path: Path
    plan: ParallelPlan
    runs: int
    out: Path
    org: str = "local"
    trainer: str | None = None  #: package to launch instead of the task's own
    system: str | None = None  #: name of the system entry; None for machine and plan
    division: Division = "closed"
    overrides: tuple[tuple[str, object], ...] = ()

    def task(self) -> Task:
        """Return the task with the overrides applied."""
        return apply_overrides(read_task(self.task_path), dict(self.overrides))

    @property
    def command(self) -> str:
        """Return the command that makes this result."""
        name = self.task().name
        parts = ["hybridperf", "run", name, "--plan", str(self.plan), "--runs", str(self.runs)]
        for key, value in self.overrides:
            parts += ["--set", f"{key}={_toml(value)}"]
        if self.trainer is not None:
            parts += ["--trainer", self.trainer]
        if self.division != "closed":
            parts += ["--division", self.division]
        return shlex.join(parts)


class SeriesObserver(Observer, Protocol):
    """Who wants to know how a series of runs goes."""

    def begin(self, number: int, done: int, wanted: int, task: Task) -> None:
        """Take note that attempt ``number`` begins, with ``done`` of ``wanted`` runs completed."""

    def sealed(self, sealed: Sealed) -> None:
        """Take note of a finished attempt."""


def check_order(order: Order) -> list[Finding]:
    """Return what keeps ``order`` from being carried out, as far as can be known before start.

    Raises:
        Refusal: exit status 4 where the task's data is not here.
    """
    task = order.task()
    devices = usable_devices()
    facts = ChainFacts(
        units=len(task.units),
        global_batch_size=task.training.global_batch_size,
        devices=devices.count,
        ranks_per_device=_RANKS_PER_CORE if devices.kind == "cpu" else 1,
    )
    findings = judge_division(task, read_task(order.task_path), order.division)
    findings += order.plan.check(facts)
    for what, name in (("org", order.org), ("system", order.system)):
        if name is not None and not NAME.fullmatch(name):
            expected = "letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"
            finding = Finding(f"order.{what}", expected, repr(name), f"choose another --{what}")
            findings.append(finding)
    trainer = _trainer(order, task)
    if not _is_trainer(trainer):
        expected = "a package with the modules train and predict"
        finding = Finding("order.trainer", expected, repr(trainer), "name one with --trainer")
        findings.append(finding)
    if not findings:
        check_data(task.data)
    return findings


def _trainer(order: Order, task: Task) -> str:
    return order.trainer or task.trainer


def _is_trainer(package: str) -> bool:
    try:
        folder = package_folder(package)
    except ModuleNotFoundError:
        return False
    return all((folder / f"{module}.py").exists() for module in ("train", "predict"))


def package_of(order: Order, description: dict[str, object]) -> Package:
    """Return where the result of ``order`` belongs."""
    system = order.system or f"{system_name(description)}-{order.plan.slug}"
    # Absolute: a run's processes are known by where it stands, and outlive a change of folder.
    return Package(order.out.absolute(), order.org, system, order.task().slug)


def run_series(order: Order, observer: SeriesObserver) -> Iterator[Sealed]:
    """Yield each attempt as it is sealed, until the result has the runs asked for.

    Attempts left behind by an earlier command are sealed first; completed runs count, and the
    replacement of an attempt that was ended gets its seed again, so that ending an unlucky run
    draws no luckier one.

    Raises:
        Refusal: exit status 2 where the folder holds another configuration, 3 where a model's
            quality did not come back, 4 where a run cannot be carried out, 5 when interrupted.
    """
    task, description = order.task(), describe_with_torch()
    package = package_of(order, description)
    with locked(package), stop_on_signals() as stop:
        try:
            yield from _carry_out(order, task, package, description, stop, observer)
        except OSError as error:
            raise environment_refusal(error, package.folder) from error


def _carry_out(
    order: Order,
    task: Task,
    package: Package,
    description: dict[str, object],
    stop: StopRequest,
    observer: SeriesObserver,
) -> Iterator[Sealed]:
    sweep(package)
    _settle_system(package, description, order)
    _same_configuration(sealed_runs(package), order, task)
    sealed_before = {run.number for run in sealed_runs(package)}
    for number in left_behind(package):
        begun = (attempt_folder(package, number) / "run.json").exists()
        if not begun or number in sealed_before:
            shutil.rmtree(attempt_folder(package, number))
            continue
        sealed = finish(package, number, order.command, stop)
        observer.sealed(sealed)
        yield sealed
        if sealed.ending.outcome is not Outcome.INTERRUPTED or stop.signal is not None:
            _go_on(sealed, package)
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
        observer.begin(number, len(completed), order.runs, task)
        spec = RunSpec(
            folder=str(attempt_folder(package, number)),
            attempt=number,
            task_path=str(order.task_path.absolute()),
            trainer=_trainer(order, task),
            overrides=dict(order.overrides),
            plan=str(order.plan),
            seed=_seed(runs, {run.fact("seed") for run in completed}),
            org=order.org,
            platform=package.system,
            division=order.division,
            clock=LogClock(),
        )
        sealed = run_attempt(spec, package, order.command, stop, observer)
        observer.sealed(sealed)
        yield sealed
        _go_on(sealed, package)


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


def _settle_system(package: Package, description: dict[str, object], order: Order) -> None:
    """Describe the system, or make sure that it is still the one described."""
    entry = {"submitter": order.org, "division": order.division, "status": "onprem"}
    content = canonical_json(description | entry | {"system_name": package.system})
    if not package.system_file.exists():
        write_atomically(package.system_file, content)
    elif package.system_file.read_bytes() != content:
        finding = Finding(
            "run.system",
            "the system that the earlier runs of this result ran on",
            "other hardware or software",
            "choose a new entry with --system NAME, or another folder with --out",
            path=str(package.system_file),
        )
        raise Refusal(finding, ExitCode.USAGE)


def _same_configuration(runs: tuple[SealedRun, ...], order: Order, task: Task) -> None:
    own: dict[str, object] = {
        "plan": str(order.plan),
        "division": order.division,
        "overrides": dict(order.overrides),
        "task": task.sha256,
    }
    facts = code_facts(_trainer(order, task))
    code = {key: facts[key] for key in ("trainer", "trainer_sha256", "suite_sha256")}
    for run in runs:
        expected = {key: run.fact(key) for key in own} | {"task": run.fact("task", "sha256")}
        found = dict(own)
        if Outcome(str(run.fact("outcome"))).completed:  # after others, code may have been mended
            expected |= {key: run.fact("code", key) for key in code}
            found |= code
        for key, value in expected.items():
            if value != found[key]:
                finding = Finding(
                    "run.configuration",
                    f"{key} {value}, as in the runs already in this folder",
                    f"{key} {found[key]}",
                    "choose a new entry with --system NAME, or another folder with --out",
                    path=str(run.log.path),
                )
                raise Refusal(finding, ExitCode.USAGE)


def _toml(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool | str) else str(value)
