"""The entry point: one command, one exit status, and a sentence where something is refused."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from suite.cli.parser import build_parser
from suite.findings import Finding
from suite.refusal import ExitCode, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out the command line and return its exit status."""
    options = build_parser().parse_args(arguments)
    # Imported by name, so that a command loads only what it needs.
    from importlib import import_module

    try:
        command = import_module(f"suite.cli.commands.{options.command}")
        status = command.execute(options)
        sys.stdout.flush()
    except Refusal as refusal:
        print(f"hybridperf: {refusal}", file=sys.stderr)  # noqa: T201 - a command talks to its user
        return refusal.exit_code
    except KeyboardInterrupt:
        print("hybridperf: interrupted; give the same command again to go on.", file=sys.stderr)  # noqa: T201 - as above
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except OSError as error:
        found = error.strerror or str(error)
        path = str(error.filename or "")
        finding = Finding(
            "file", "files and folders that can be used", found, "choose others", path
        )
        print(f"hybridperf: {finding.sentence}", file=sys.stderr)  # noqa: T201 - as above
        return ExitCode.ENVIRONMENT
    return int(status)
