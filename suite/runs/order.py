"""What the user asks for, checked before anything starts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, visible
from suite.logs.package import NAME, Package
from suite.plan import ChainFacts
from suite.runs.nodes import Nodes
from suite.runs.provenance import package_folder
from suite.systems.devices import usable_devices
from suite.systems.name import entry_name, system_name
from suite.tasks.data import check_data
from suite.tasks.overrides import apply_overrides, judge_division
from suite.tasks.registry import is_of_suite, task_names
from suite.tasks.task import read_task

if TYPE_CHECKING:
    from pathlib import Path

    from suite.plan import ParallelPlan
    from suite.tasks.task import Division, Task

__all__ = ["Order", "check_order", "package_of"]

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
    nodes: Nodes = field(default_factory=Nodes)

    @property
    def launched(self) -> str:
        """Return the package whose modules are launched."""
        return self.trainer or read_task(self.task_path).trainer

    def task(self) -> Task:
        """Return the task with the overrides applied."""
        return apply_overrides(read_task(self.task_path), dict(self.overrides))

    @property
    def command(self) -> str:
        """Return the command that makes this result."""
        name = self.task().name if is_of_suite(self.task_path) else str(self.task_path)
        parts = ["hybridperf", "run", name, "--plan", str(self.plan), "--runs", str(self.runs)]
        for key, value in self.overrides:
            parts += ["--set", f"{key}={_toml(value)}"]
        if self.trainer is not None:
            parts += ["--trainer", self.trainer]
        if self.division != "closed":
            parts += ["--division", self.division]
        if self.nodes.count > 1:  # where they meet is nobody's business
            parts += ["--nodes", str(self.nodes.count)]
        return shlex.join(parts)


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
        devices=devices.count * order.nodes.count,
        ranks_per_device=_RANKS_PER_CORE if devices.kind == "cpu" else 1,
        device_kind=devices.kind,
        tensor_sizes=task.parallel.tensor_sizes,
        tokens=task.parallel.tokens,
        batch_norm=task.parallel.batch_norm,
        tied=task.parallel.tied,
        compiler=devices.kind != "cpu" or shutil.which(os.environ.get("CXX", "g++")) is not None,
    )
    findings = judge_division(task, read_task(order.task_path), order.division)
    findings += order.plan.check(facts)
    if order.plan.ranks % order.nodes.count:
        expected = f"a plan whose ranks {order.nodes.count} nodes share equally"
        found, remedy = f"{order.plan} of {order.plan.ranks}", "change the plan or --nodes"
        findings.append(Finding("order.nodes", expected, found, remedy))
    for what, name in (("org", order.org), ("system", order.system)):
        if name is not None and not NAME.fullmatch(name):
            expected = "letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"
            finding = Finding(f"order.{what}", expected, repr(name), f"choose another --{what}")
            findings.append(finding)
    if not is_of_suite(order.task_path) and task.name in task_names():
        expected, remedy = "a name that no task of the suite has", "choose another in the file"
        findings.append(
            Finding("order.task", expected, repr(task.name), remedy, visible(str(order.task_path)))
        )
    if not _is_trainer(order.launched):
        expected = "a package with the modules train and predict"
        finding = Finding(
            "order.trainer", expected, repr(order.launched), "name one with --trainer"
        )
        findings.append(finding)
    if not findings:
        check_data(task.data)
    return findings


def _is_trainer(package: str) -> bool:
    try:
        folder = package_folder(package)
    except ModuleNotFoundError:
        return False
    return all((folder / f"{module}.py").exists() for module in ("train", "predict"))


def package_of(order: Order, description: dict[str, object]) -> Package:
    """Return where the result of ``order`` belongs."""
    system = order.system or entry_name(system_name(description), order.plan.slug)
    # Absolute: a run's processes are known by where it stands, and outlive a change of folder.
    return Package(order.out.absolute(), order.org, system, order.task().slug)


def _toml(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool | str) else str(value)
