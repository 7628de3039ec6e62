"""``hybridperf doctor``: what is missing here, and how to get it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line
from suite.refusal import ExitCode
from suite.systems.doctor import diagnose

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]

_MARKS = {"ok": "ok      ", "missing": "MISSING ", "optional": "optional"}


def execute(options: argparse.Namespace) -> ExitCode:
    """Print every diagnosis; exit status 4 where something needed is missing."""
    found = diagnose(options.out)
    if options.json:
        print_json([dataclasses.asdict(each) for each in found])
    else:
        for each in found:
            remedy = "" if each.status == "ok" else f" -> {each.remedy}"
            print_line(f"{_MARKS[each.status]}  {each.name}: {each.detail}{remedy}")
    missing = any(each.status == "missing" for each in found)
    return ExitCode.ENVIRONMENT if missing else ExitCode.OK
