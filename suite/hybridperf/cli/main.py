"""The entry point: execute one command, report errors in one sentence, return the exit status."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from hybridperf.cli.parser import COMMANDS, build_parser
from hybridperf.errors import ExitCode, UserError, missing_package
from hybridperf.spelling import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute the command line ``arguments``, by default ``sys.argv``; return the exit status."""
    try:
        status = _execute(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except UserError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        reason = "interrupted; give the same command again to resume."
        return _refuse(UserError(reason, ExitCode.INTERRUPTED))
    except BrokenPipeError:  # the reader of our output has closed it, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package.startswith("hybridperf"):
            raise  # a bug, not a missing package
        return _refuse(missing_package(package))
    except OSError as error:
        refusal = UserError.of(
            "file",
            "files and folders that can be used",
            error.strerror or str(error),
            "choose others",
            path=str(error.filename or ""),
            exit_code=ExitCode.ENVIRONMENT,
        )
        return _refuse(refusal)
    return status


def _execute(arguments: Sequence[str]) -> int:
    """Import the module of the command in ``arguments``, and no other command's, and execute it."""
    first = next(iter(arguments), "-")
    if not first.startswith("-") and first not in COMMANDS:
        hint = did_you_mean(first, COMMANDS, "'hybridperf --help' lists them.")
        raise UserError(f"expected a command, found {first!r:.80}; {hint}", ExitCode.USAGE)
    parser = build_parser([each for each in arguments if each in COMMANDS][:1])
    options = parser.parse_args(arguments)
    command = import_module(f"hybridperf.cli.commands.{options.command}")
    return int(command.execute(options))


def _refuse(error: UserError) -> ExitCode:
    sys.stderr.write(f"hybridperf: {error}\n")
    return error.exit_code
