"""Printing of the rules of a ruleset, or of one of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hybridperf.cli.printing import print_json, print_line, print_table
from hybridperf.errors import ExitCode
from hybridperf.rules.explain import explain, explain_all

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

__all__ = ["print_rule", "print_rules"]


def print_rules(options: argparse.Namespace, ruleset: str | Path) -> ExitCode:
    """Print every rule of the ruleset, or those of the mode given."""
    rules = [
        each
        for each in explain_all(ruleset)
        if options.mode in (None, "strict") or each.mode == options.mode
    ]
    if options.format == "json":
        print_json([each.as_json() for each in rules])
    else:
        rows = ((each.rule, each.severity, each.mode, each.source) for each in rules)
        print_table(("rule", "severity", "mode", "source"), rows)
    return ExitCode.OK


def print_rule(options: argparse.Namespace, ruleset: str | Path) -> ExitCode:
    """Print one rule: its severity, what it checks, its source, remedy and parameters."""
    found = explain(options.explain, ruleset)
    if options.format == "json":
        print_json(found.as_json())
        return ExitCode.OK
    print_line(f"{found.rule}: {found.severity}, in ruleset {found.ruleset}, mode {found.mode}")
    print_line(f"  checks: {found.checks}")
    print_line(f"  source: {found.source}")
    print_line(f"  remedy: {found.remedy}")
    print_line(f"  example, in {found.example_of}:")
    for words, lines in (("breaks it", found.breaks), ("mended", found.mended)):
        for line in lines.splitlines() or ["(none)"]:
            print_line(f"    {words + ':':<10} {line}")
    for name, value in found.parameters.items():
        print_line(f"  with {name} = {json.dumps(value)}")
    return ExitCode.OK
