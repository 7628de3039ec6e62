"""Output to the terminal: lines, tables and JSON."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

from hybridperf.errors import ExitCode
from hybridperf.findings import visible
from hybridperf.report.terminal import table_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.findings import Finding

__all__ = [
    "print_json",
    "print_line",
    "print_stage",
    "print_table",
    "say_barred",
    "terminal_width",
]


def print_line(text: str = "") -> None:
    """Print one line."""
    sys.stdout.write(f"{text}\n")


def print_stage(text: str) -> None:
    """Print to standard error, unbuffered, which stage of a command begins."""
    sys.stderr.write(f"hybridperf: {visible(text)}\n")
    sys.stderr.flush()


def print_json(value: object) -> None:
    """Print ``value`` as JSON."""
    # Written in pieces: the findings of a whole round would make a very large text.
    sys.stdout.writelines(json.JSONEncoder(indent=2, allow_nan=False).iterencode(value))
    print_line()


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that is at most as wide as the terminal."""
    print_line(table_text(heads, rows, terminal_width()))


def terminal_width() -> int:
    """Return the characters per line: the variable COLUMNS, else the terminal's width, else 200."""
    return shutil.get_terminal_size((200, 24)).columns


def say_barred(findings: Iterable[Finding]) -> ExitCode:
    """Print on stderr which files and folders cannot be read; return the exit status."""
    barred = list(dict.fromkeys(findings))
    sys.stderr.writelines(f"hybridperf: {finding.sentence}\n" for finding in barred)
    if not barred:
        return ExitCode.OK
    count = "1 file or folder" if len(barred) == 1 else f"{len(barred)} files and folders"
    sys.stderr.write(f"hybridperf: {count} cannot be read: results in there have no score.\n")
    return ExitCode.ENVIRONMENT
