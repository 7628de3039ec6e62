"""``hybridperf prepare``: prepare a task's data once for all its runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from rich.console import Console

from hybridperf.cli.options import add_data_dir
from hybridperf.cli.printing import print_line
from hybridperf.cli.progress import progress_bar
from hybridperf.errors import ExitCode
from hybridperf.tasks.data import check_data, prepare
from hybridperf.tasks.data.samples import export_data_folder
from hybridperf.tasks.registry import read_task, resolve_task

if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = "hybridperf prepare bert/workstation --data-dir wikitext"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf prepare``."""
    parser.add_argument("task", help="task, such as bert/workstation, or a TOML file with one")
    add_data_dir(parser)


def execute(options: argparse.Namespace) -> ExitCode:
    """Prepare the data, with a progress bar on a terminal, and verify its hash."""
    export_data_folder(options.data_dir)
    task = read_task(resolve_task(options.task))
    with progress_bar(Console(file=sys.stderr, highlight=False)) as bar:
        line = bar.add_task("reading")

        def tell(done: float, total: int, what: str) -> None:
            bar.update(line, description=what, completed=done, total=total)

        done = prepare(task.data, tell)
    sha256 = check_data(task.data)
    state = "prepared" if done else "already prepared"
    print_line(f"{task.name}: {state}; SHA-256 of the data: {sha256}.")
    return ExitCode.OK
