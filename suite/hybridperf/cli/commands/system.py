"""``hybridperf system``: describe this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode
from hybridperf.report.terminal import table_text
from hybridperf.system.describe import describe_with_torch, show, system_name

if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = "hybridperf system"
_WIDEST: Final = 100  #: a list of packages is easier to read in short lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf system``."""
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print the description of this machine that a result would contain."""
    description = describe_with_torch()
    if options.format == "json":
        print_json(description)
    else:
        heads = ("system", system_name(description))
        print_line(table_text(heads, show(description), min(terminal_width(), _WIDEST)))
    return ExitCode.OK
