"""``hybridperf list``: the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_table
from suite.refusal import ExitCode
from suite.tasks.overrides import hyperparameters
from suite.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Show every task."""
    tasks = [find_task(name) for name in task_names()]
    if options.json:
        print_json(
            [
                {
                    "name": task.name,
                    "title": task.title,
                    "version": task.version,
                    "metric": task.quality.metric,
                    "target": task.quality.target,
                    "runs": task.runs.count,
                    "units": list(task.units),
                    "hyperparameters": hyperparameters(task),
                    "closed_division_may_change": {key: str(b) for key, b in task.closed.items()},
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
        )
        for task in tasks
    )
    print_table(("task", "what", "target", "runs"), rows)
    return ExitCode.OK
