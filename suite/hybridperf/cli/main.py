"""The command line: parse it, execute one command, report errors in one sentence."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from importlib import import_module
from typing import TYPE_CHECKING, Final, NoReturn

import hybridperf
from hybridperf.errors import ExitCode, UserError, missing_package
from hybridperf.findings import visible
from hybridperf.spelling import did_you_mean, nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["COMMANDS", "build_parser", "main"]

_EXIT_STATUS: Final = """\
exit status: 0 ok · 1 a run missed its target · 2 usage · 3 invalid log or result, or
contradicted claim · 4 this machine lacks something · 5 interrupted: the same command resumes ·
6 slower than the baseline"""

#: Summary of each command. Its module in `hybridperf.cli.commands` has EXAMPLES, add_arguments and
#: execute; it is imported only if the command is given, to keep the general help fast.
COMMANDS: Final = {
    "list": "list the tasks",
    "plan": "project the fastest parallel plans, and explain the projection",
    "fit": "fit a system to logs of runs, for plans on it",
    "run": "train a task to its target, as often as its result requires",
    "prepare": "tokenise a task's text or verify its images, once before its runs",
    "check": "check compliance of logs and results with the rules, and explain violations",
    "score": "compute times to train with confidence intervals",
    "compare": "test whether two results differ, by how much, and why",
    "scale": "measure scaling efficiency, and explain losses",
    "claims": "check published claims, from logs, by projection or by arithmetic",
    "rcp": "make reference convergence points of a task",
    "sign": "sign a result with an SSH key",
    "rescore": "recount a result's predictions, and predict again from its weights",
    "export": "write the weights of a result as another library reads them",
    "rerun": "reproduce a published result, and report whether it is confirmed",
    "submit": "pack an organisation's publishable results for a leaderboard",
    "report": "write the leaderboard as a page, Markdown, CSV and JSON",
    "system": "describe this machine as results do",
    "doctor": "diagnose what this machine lacks, with remedies",
    "completion": "print a completion script for your shell",
}


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"hybridperf: {message}; see '{self.prog} --help'.\n")

    def parse_known_args(  # type: ignore[override]  # argparse overloads it by the namespace
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse unknown arguments here, in the parser of the command, which knows its options."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = {option.lstrip("-"): option for option in self._option_string_actions}
            words = (each.partition("=")[0].lstrip("-") for each in unknown if each[:1] == "-")
            likely = [known[name] for word in words for name in nearest(word, known)]
            hint = f"did you mean {' and '.join(likely)}? S" if likely else "s"
            self.exit(
                ExitCode.USAGE,
                f"hybridperf: unrecognized arguments: {visible(' '.join(unknown))}; {hint}ee "
                f"'{self.prog} --help'.\n",
            )
        return options, unknown


def build_parser(given: Collection[str] = COMMANDS.keys()) -> argparse.ArgumentParser:
    """Build the command-line parser; only the commands in ``given`` get their arguments."""
    parser = _Parser(
        prog="hybridperf",
        description="Measure time to train to a target quality, explain where the time goes, and "
        "tell whether two results are comparable.",
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command line ``arguments``, by default ``sys.argv``; return the exit status."""
    try:
        status = _execute(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except UserError as error:
        return _report(error)
    except KeyboardInterrupt:
        reason = "interrupted; give the same command again to resume."
        return _report(UserError(reason, ExitCode.INTERRUPTED))
    except BrokenPipeError:  # the reader of our output has closed it, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package.startswith("hybridperf"):
            raise  # a bug, not a missing package
        return _report(missing_package(package))
    except OSError as error:
        unusable = UserError.of(
            "file",
            "files and folders that can be used",
            error.strerror or str(error),
            "choose others",
            path=str(error.filename or ""),
            exit_code=ExitCode.ENVIRONMENT,
        )
        return _report(unusable)
    return status


def _execute(arguments: Sequence[str]) -> int:
    """Import the module of the command in ``arguments``, and no other command's, and execute it."""
    if not arguments or arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    first = arguments[0]
    if not first.startswith("-") and first not in COMMANDS:
        hint = did_you_mean(first, COMMANDS, "'hybridperf --help' lists them.")
        raise UserError(f"expected a command, found {first!r:.80}; {hint}", ExitCode.USAGE)
    parser = build_parser([each for each in arguments if each in COMMANDS][:1])
    options = parser.parse_args(arguments)
    command = import_module(f"hybridperf.cli.commands.{options.command}")
    return int(command.execute(options))


def _report(error: UserError) -> ExitCode:
    sys.stderr.write(f"hybridperf: {error}\n")
    return error.exit_code
