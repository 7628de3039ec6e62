"""``hybridperf doctor``: diagnose what this machine lacks, with remedies."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format
from hybridperf.cli.printing import print_json, print_line
from hybridperf.errors import ExitCode
from hybridperf.system.doctor import diagnose

if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = "hybridperf doctor"

_MARKS = {"ok": "ok      ", "missing": "MISSING ", "optional": "optional"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf doctor``."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        help="folder for the results of runs (default: runs)",
    )
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print every diagnosis; exit status 4 if a requirement is missing."""
    found = diagnose(options.out)
    if options.format == "json":
        print_json([dataclasses.asdict(each) for each in found])
    else:
        for each in found:
            remedy = "" if each.status == "ok" else f" -> {each.remedy}"
            print_line(f"{_MARKS[each.status]}  {each.name}: {each.detail}{remedy}")
    missing = any(each.status == "missing" for each in found)
    return ExitCode.ENVIRONMENT if missing else ExitCode.OK
