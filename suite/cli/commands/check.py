"""``hybridperf check``: whether logs and results keep the rules."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line
from suite.refusal import ExitCode
from suite.rules.check import RULESET, check_path

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Print every finding and a summary."""
    verdict = check_path(options.path)
    if options.json:
        print_json(verdict.as_json())
    else:
        for finding in verdict.findings:
            print_line(f"{finding.severity} {finding.rule} {finding.sentence}")
        counts = Counter(finding.rule for finding in verdict.findings)
        for rule, count in sorted(counts.items()):
            print_line(f"  {count} x {rule}")
        word = "valid" if verdict.valid else "INVALID"
        logs = f"{len(verdict.logs)} log{'s' if len(verdict.logs) != 1 else ''}"
        print_line(f"{options.path}: {word} by {RULESET}, {logs} checked")
    return ExitCode.OK if verdict.valid else ExitCode.INVALID
