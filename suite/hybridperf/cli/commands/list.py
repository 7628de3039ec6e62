"""``hybridperf list``: show the tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format
from hybridperf.cli.printing import print_json, print_table
from hybridperf.errors import ExitCode
from hybridperf.tasks.overrides import hyperparameters
from hybridperf.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf list
hybridperf list --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf list``."""
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print all tasks of the suite."""
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
    print_table(("task", "title", "target", "runs"), rows)
    return ExitCode.OK
