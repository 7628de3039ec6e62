"""A request for benchmark runs, and its validation before anything is launched."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError, missing_package
from hybridperf.findings import Finding, visible
from hybridperf.log.package import NAME, Package
from hybridperf.run.elastic import judge_elastic
from hybridperf.run.initial import find_initial_weights, judge_initial_weights
from hybridperf.run.nodes import Nodes
from hybridperf.run.provenance import has_module
from hybridperf.run.sandbox import mode_of
from hybridperf.system.accelerators import usable_devices
from hybridperf.system.describe import entry_name, system_name
from hybridperf.system.software import torch_folder
from hybridperf.tasks.data import require_readable
from hybridperf.tasks.overrides import apply_overrides, judge_division
from hybridperf.tasks.registry import in_suite, read_task, task_names

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.plan import ParallelPlan, TrainingConfig
    from hybridperf.run.initial import InitialWeights
    from hybridperf.run.spec import Mode
    from hybridperf.system.accelerators import Devices
    from hybridperf.tasks.task import Division, Task

__all__ = ["RunRequest", "check_request", "package_of", "request_config"]

_RANKS_PER_CORE: Final = 4  #: more would measure the operating system's scheduler


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The parameters of one ``hybridperf run`` command."""

    task_path: Path
    plan: ParallelPlan
    runs: int
    out: Path
    org: str = "local"
    trainer: str | None = None  #: package to launch instead of the task's own
    system: str | None = None  #: name of the system entry; None for machine and plan
    division: Division = "closed"
    overrides: tuple[tuple[str, object], ...] = ()
    keep_weights: bool = False  #: keep the final weights beside each log
    publish_errors: bool = False  #: publish the texts of exceptions, too
    nodes: Nodes = field(default_factory=Nodes)
    initial: Path | None = None  #: file of weights to begin from, instead of the task's
    mode: Mode = "sandboxed"  #: open: the trainer reads the data, and may write the log itself
    #: plans that go on after the loss of a rank, separated by ";"; "": with fewer replicas
    elastic: str | None = None
    checkpoint_s: float = 0.0  #: seconds between checkpoints beside evaluations; 0: none

    @property
    def launched(self) -> str:
        """Return the package whose modules are launched."""
        return self.trainer or read_task(self.task_path).trainer

    def task(self) -> Task:
        """Return the task with the overrides applied."""
        return apply_overrides(read_task(self.task_path), dict(self.overrides))

    @property
    def reads_data(self) -> bool:
        """Return whether this node reads the task's data: node 0 may hand it to all ranks."""
        return self.nodes.rank == 0 or mode_of(self.task(), self.mode) == "open"

    def initial_weights(self) -> InitialWeights | None:
        """Return the weights that the runs begin from; None if they begin from random ones.

        Raises:
            UserError: exit status 4 if their file is missing, or of another hash than the task's.
        """
        return find_initial_weights(self.task(), self.initial)

    @property
    def command(self) -> str:
        """Return the command that makes this result."""
        name = self.task().name if in_suite(self.task_path) else str(self.task_path)
        parts = ["hybridperf", "run", name, "--plan", str(self.plan), "--runs", str(self.runs)]
        for key, value in self.overrides:
            text = json.dumps(value) if isinstance(value, bool | str) else value  # as in TOML
            parts += ["--set", f"{key}={text}"]
        if self.trainer is not None:
            parts += ["--trainer", self.trainer]
        if self.initial is not None:
            parts += ["--initial", self.initial.name]
        if self.division != "closed":
            parts += ["--division", self.division]
        if self.mode == "open":
            parts += ["--mode", self.mode]
        if self.elastic is not None:
            parts += ["--elastic", self.elastic] if self.elastic else ["--elastic"]
        if self.checkpoint_s:
            parts += ["--checkpoint-every", f"{self.checkpoint_s:g}"]
        if self.nodes.count > 1:  # the rendezvous is not published
            parts += ["--nodes", str(self.nodes.count)]
        return shlex.join(parts)


def check_request(request: RunRequest, elsewhere: Devices | None = None) -> list[Finding]:
    """Validate ``request`` as far as possible without launching it; return the problems found.

    ``elsewhere`` are the devices of each node if this machine is not one of them.

    Raises:
        UserError: exit status 4 if PyTorch, the task's data or the weights to begin from are
            missing on this machine.
    """
    if elsewhere is None and torch_folder() is None:
        raise missing_package("torch")
    task, config = request.task(), request_config(request, elsewhere)
    findings = judge_division(task, read_task(request.task_path), request.division)
    findings += [*request.plan.check(config), *_judge_plan(request)]
    findings += [*_judge_checkpoints(request)]
    findings += judge_elastic(request.elastic, request.plan, config, request.nodes.count)
    findings += judge_initial_weights(request.initial, request.division)
    if request.plan.ranks % request.nodes.count:
        expected = f"a plan whose ranks {request.nodes.count} nodes share equally"
        found, remedy = f"{request.plan} of {request.plan.ranks}", "change the plan or --nodes"
        findings.append(Finding("request.nodes", expected, found, remedy))
    for what, name in (("org", request.org), ("system", request.system)):
        if name is not None and not NAME.fullmatch(name):
            expected = "letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"
            finding = Finding(f"request.{what}", expected, repr(name), f"choose another --{what}")
            findings.append(finding)
    if not in_suite(request.task_path) and task.name in task_names():
        expected, remedy = "a name that no task of the suite has", "choose another in the file"
        findings.append(
            Finding(
                "request.task", expected, repr(task.name), remedy, visible(str(request.task_path))
            )
        )
    if not all(has_module(request.launched, module) for module in ("train", "predict")):
        expected = "a package with the modules train and predict"
        finding = Finding(
            "request.trainer", expected, repr(request.launched), "name one with --trainer"
        )
        findings.append(finding)
    if not findings and elsewhere is None:
        if request.reads_data:
            require_readable(task.data)
        request.initial_weights()
    return findings


def request_config(request: RunRequest, elsewhere: Devices | None = None) -> TrainingConfig:
    """Return what constrains the plans of ``request`` on this machine, or on such machines.

    ``elsewhere`` are the devices of each node if this machine is not one of them.
    """
    task, devices = request.task(), elsewhere or usable_devices()
    return task.training_config(
        devices.count * request.nodes.count,
        devices.kind,
        ranks_per_device=_RANKS_PER_CORE if devices.kind == "cpu" else 1,
        compiler=elsewhere is not None
        or devices.kind != "cpu"
        or shutil.which(os.environ.get("CXX", "g++")) is not None,
    )


def _judge_checkpoints(request: RunRequest) -> list[Finding]:
    """Return a finding if steps of the plan outlast a pause for a checkpoint."""
    if not request.checkpoint_s or request.plan.equivalent:
        return []
    expected = "a plan that computes what one process does, with --checkpoint-every"
    remedy = "drop --checkpoint-every: a pause would change what the plan computes"
    return [Finding("request.checkpoints", expected, ",".join(request.plan.deviations), remedy)]


def _judge_plan(request: RunRequest) -> list[Finding]:
    """Return a finding if the closed division does not allow the plan."""
    if request.division == "open" or request.plan.equivalent:
        return []
    expected = "a plan that computes what one process does, in the closed division"
    remedy = "drop it, or enter the open division with --division open"
    found, path = ",".join(request.plan.deviations), f"plan {str(request.plan)!r}"
    return [Finding("division.plan", expected, found, remedy, path)]


def require_valid(request: RunRequest) -> None:
    """Check that ``request`` can be carried out, as far as is known before the start.

    Raises:
        UserError: exit status 2 with the first finding, 4 if the task's data is missing.
    """
    if findings := check_request(request):
        raise UserError(findings[0], ExitCode.USAGE)


def package_of(request: RunRequest, description: dict[str, object]) -> Package:
    """Return the location of the result of ``request`` in the submission."""
    system = request.system or entry_name(system_name(description), request.plan.slug)
    # Absolute: the path identifies a run's processes, whatever their working directory.
    return Package(request.out.absolute(), request.org, system, request.task().slug)
