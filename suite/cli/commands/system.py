"""``hybridperf system``: what this machine is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_table
from suite.refusal import ExitCode
from suite.systems.describe import describe_with_torch
from suite.systems.name import system_name
from suite.systems.show import show

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Describe this machine as a result would."""
    description = describe_with_torch()
    if options.json:
        print_json(description)
    else:
        print_table(("system", system_name(description)), show(description))
    return ExitCode.OK
