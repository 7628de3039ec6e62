"""The command-line parser."""

from __future__ import annotations

import argparse
import textwrap
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

import hybridperf
from hybridperf.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["COMMANDS", "build_parser"]

_EXIT_STATUS: Final = """\
exit status: 0 ok · 1 a run missed its target · 2 usage · 3 invalid log or result ·
4 this machine lacks something · 5 interrupted: the same command resumes"""

#: Summary of each command. Its module in `hybridperf.cli.commands` has EXAMPLES, add_arguments and
#: execute; it is imported only if the command is given, to keep the general help fast.
COMMANDS: Final = {
    "list": "show the tasks",
    "plan": "say which parallel plans are projected to be fastest, and why",
    "fit": "fit a system to the logs of runs, for plans on it",
    "run": "train a task to its target, as often as its result takes",
    "prepare": "turn a task's text into tokens or check its images, before its runs",
    "check": "say whether logs and results keep the rules, and if not, why",
    "score": "turn results into times to train with intervals",
    "compare": "say whether two results differ, by how much, and why",
    "scale": "say how efficiently more devices make training faster, and why",
    "rcp": "make reference convergence points of a task",
    "sign": "sign a result with an SSH key",
    "rescore": "count a result's predictions again, and predict from its weights",
    "rerun": "run another's result again, and state whether it holds",
    "report": "write the leaderboard as a page, as Markdown and as CSV",
    "system": "describe this machine as a result would",
    "doctor": "say what is missing here and how to get it",
    "completion": "print a script that completes commands in your shell",
}


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"hybridperf: {message}; see '{self.prog} --help'.\n")


def build_parser(given: Collection[str] = COMMANDS.keys()) -> argparse.ArgumentParser:
    """Build the command-line parser; only the commands in ``given`` get their arguments."""
    parser = _Parser(
        prog="hybridperf",
        description="How long does this system take to train this model to this quality, why, "
        "and may these two numbers be compared?",
        epilog=_EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"hybridperf {hybridperf.__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name in given:
            module = import_module(f"hybridperf.cli.commands.{name}")
            module.add_arguments(command)
            examples = textwrap.indent(module.EXAMPLES, "  ")
            command.epilog = f"examples:\n{examples}\n\n{_EXIT_STATUS}"
    return parser
