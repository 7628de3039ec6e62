"""``hybridperf prepare``: make of a task's data, once, what its runs read."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from suite.cli.printing import print_line
from suite.refusal import ExitCode
from suite.tasks.data import check_data, prepare
from suite.tasks.data.place import DATA_VARIABLE
from suite.tasks.registry import named_task
from suite.tasks.task import read_task

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Prepare the data, with a bar on a terminal, and check that it is what the task asks for."""
    if options.data_dir is not None:
        os.environ[DATA_VARIABLE] = str(options.data_dir.absolute())
    task = read_task(named_task(options.task))
    console = Console(file=sys.stderr, highlight=False)
    columns = (BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(
        TextColumn("{task.description}", markup=False),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        line = bar.add_task("reading")

        def tell(done: float, total: int, tokens: int) -> None:
            bar.update(line, description=f"{tokens:,} tokens", completed=done, total=total)

        done = prepare(task.data, tell)
    sha256 = check_data(task.data)
    what = "prepared" if done else "nothing is left to prepare"
    print_line(f"{task.name}: {what}; its data has the SHA-256 {sha256}.")
    return ExitCode.OK
