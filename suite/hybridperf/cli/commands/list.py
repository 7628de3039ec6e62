"""``hybridperf list``: show the tasks, how long they take, and whether they can run here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_data_dir, add_format
from hybridperf.cli.planning import samples_to_target
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError, missing_package
from hybridperf.plan import ParallelPlan
from hybridperf.projection.project import duration
from hybridperf.report.terminal import table_text, wrapped
from hybridperf.run.projection import project_run
from hybridperf.run.request import RunRequest
from hybridperf.system.doctor import require_data
from hybridperf.system.software import torch_folder
from hybridperf.tasks.data.samples import export_data_folder
from hybridperf.tasks.mlperf import differences_from_bert
from hybridperf.tasks.overrides import hyperparameters
from hybridperf.tasks.registry import find_task, task_names, task_path

if TYPE_CHECKING:
    import argparse

    from hybridperf.tasks.task import Data, Task

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf list
hybridperf list --data-dir ~/imagenet
hybridperf list --json"""
_NOTES: Final = """\
time: training of one run of one process, projected from measurements of this machine, which \
'hybridperf plan TASK --devices 1' makes; else the limit of the task
here: whether data and packages are on this machine; 'hybridperf doctor' names what is not"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf list``."""
    add_data_dir(parser)
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print all tasks of the suite."""
    export_data_folder(options.data_dir)
    tasks = [find_task(name) for name in task_names()]
    if options.format == "json":
        print_json(
            [
                {
                    "name": task.name,
                    "title": task.title,
                    "version": task.version,
                    "metric": task.quality.metric,
                    "target": task.quality.target,
                    "runs": task.runs.count,
                    "projected_run_s": _projected_s(task),
                    "most_run_s": task.limits.run_s,
                    "data": task.data.source,
                    "missing": _missing(task),
                    "units": list(task.units),
                    "hyperparameters": hyperparameters(task),
                    "closed_division_may_change": {key: str(b) for key, b in task.closed.items()},
                    "differs_from_mlperf": _differences(task),
                }
                for task in tasks
            ]
        )
        return ExitCode.OK
    rows = (
        (
            task.name,
            task.title,
            f"{task.quality.target:.1%} {task.quality.metric}",
            f"{task.runs.count}",
            _time(task),
            _short(task.data),
            "no" if _missing(task) else "yes",
        )
        for task in tasks
    )
    heads = ("task", "title", "target", "runs", "time", "data", "here")
    print_line(table_text(heads, rows, terminal_width(), keep=(9, 2, 9, 9, 9, 9, 9)))
    for note in _NOTES.splitlines():
        print_line("\n".join(wrapped(note, terminal_width())))
    return ExitCode.OK


def _time(task: Task) -> str:
    projected_s = _projected_s(task)
    return duration(projected_s) if projected_s else f"≤ {_limit(task.limits.run_s)}"


def _limit(seconds: float) -> str:
    """Return a limit in the largest unit that divides it."""
    size, unit = next(
        (size, unit)
        for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
        if seconds % size == 0 or size == 1
    )
    return f"{seconds / size:.3g} {unit}"


def _projected_s(task: Task) -> float | None:
    """Return the projected training time of a run of one process here; None if unknown."""
    samples = samples_to_target(task)
    if samples is None:
        return None
    request = RunRequest(task_path(task.name), ParallelPlan(), runs=1, out=Path("runs"))
    try:
        step_s = project_run(request).get("step_s")
    except UserError:  # such as no PyTorch
        return None
    if not isinstance(step_s, float):
        return None
    return samples / task.training.global_batch_size * step_s


def _differences(task: Task) -> dict[str, dict[str, str]]:
    """Return what differs from MLPerf's BERT, by what it is; nothing for other models."""
    rows = differences_from_bert(task) if task.family == "bert_large" else []
    return {what: {"mlperf": theirs, "task": ours} for what, theirs, ours in rows}


def _missing(task: Task) -> str | None:
    """Return what this machine lacks to run ``task``, as a sentence; None if nothing."""
    try:
        if torch_folder() is None:
            raise missing_package("torch")
        require_data(task.data)
    except UserError as error:
        return str(error)
    return None


def _short(data: Data) -> str:
    """Return the name that the source of ``data`` begins with, such as ``CIFAR-10``."""
    return re.split(r" \(|,| of | with ", data.source)[0]
