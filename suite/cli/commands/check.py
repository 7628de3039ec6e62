"""``hybridperf check``: whether logs and results keep the rules."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from suite.cli.printing import print_json, print_line
from suite.refusal import ExitCode, Refusal
from suite.rules.check import RULESET, check_path
from suite.rules.published import check_published
from suite.rules.published_ruleset import known_rulesets

if TYPE_CHECKING:
    import argparse

__all__ = ["execute"]


def execute(options: argparse.Namespace) -> ExitCode:
    """Print every finding and a summary."""
    _check_mode(options)
    if options.ruleset == RULESET:
        verdict = check_path(options.path)
    else:
        verdict = check_published(options.path, options.ruleset)
    if options.json or options.format == "json":
        print_json(verdict.as_json())
    else:
        for finding in verdict.findings:
            print_line(f"{finding.severity} {finding.rule} {finding.sentence}")
        counts = Counter(finding.rule for finding in verdict.findings)
        for rule, count in sorted(counts.items()):
            print_line(f"  {count} x {rule}")
        word = "valid" if verdict.valid else "INVALID"
        logs = f"{len(verdict.logs)} log{'s' if len(verdict.logs) != 1 else ''}"
        print_line(f"{options.path}: {word} by {verdict.ruleset}, {logs} checked")
    return ExitCode.OK if verdict.valid else ExitCode.INVALID


def _check_mode(options: argparse.Namespace) -> None:
    known = known_rulesets()
    if options.ruleset not in known:
        reason = f"expected a ruleset out of {', '.join(known)}, found {options.ruleset!r:.80}"
        raise Refusal(f"{reason}; name one with --ruleset.", ExitCode.USAGE)
    mode = "strict" if options.ruleset == RULESET else "as-published"
    if options.mode not in (None, mode):
        reason = f"expected --mode {mode} with ruleset {options.ruleset}, found {options.mode}"
        raise Refusal(f"{reason}; choose another ruleset with --ruleset.", ExitCode.USAGE)
