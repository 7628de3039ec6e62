"""``hybridperf check``: whether logs and results keep the rules."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from suite.cli.printing import print_json, print_line
from suite.refusal import ExitCode, Refusal
from suite.rules.check import RULESET, check_path
from suite.rules.choose import choose_ruleset
from suite.rules.mlperf.check_round import check_round
from suite.rules.mlperf.ruleset import known_rulesets

if TYPE_CHECKING:
    import argparse

    from suite.rules.check import Verdict
    from suite.rules.mlperf.check_round import Mode

__all__ = ["execute"]

_MOST_SHOWN: Final = 3  # findings of a rule in a file


def execute(options: argparse.Namespace) -> ExitCode:
    """Print every finding and a summary, or what the rules are."""
    if options.ruleset is None:
        options.ruleset = RULESET if options.path is None else choose_ruleset(options.path)
    _check_mode(options)
    if options.rules or options.explain is not None:
        from suite.cli.rule_pages import print_rule, print_rules

        return print_rules(options) if options.rules else print_rule(options)
    if options.path is None:
        reason = "expected a log or a folder to check, found none; name its path"
        raise Refusal(f"{reason}, or see 'hybridperf check --help'.", ExitCode.USAGE)
    verdict = _verdict(options)
    if options.json or options.format == "json":
        print_json(verdict.as_json())
    elif options.format == "junit":
        from suite.report.junit import junit_xml

        print_line(junit_xml(verdict))
    else:
        _print_findings(verdict)
        counts = Counter(finding.rule for finding in verdict.findings)
        for rule, count in sorted(counts.items()):
            print_line(f"  {count} x {rule}")
        word = "valid" if verdict.valid else "INVALID"
        logs = f"{len(verdict.logs)} log{'s' if len(verdict.logs) != 1 else ''}"
        print_line(f"{options.path}: {word} by {verdict.ruleset}, {logs} checked")
    return ExitCode.OK if verdict.valid else ExitCode.INVALID


def _print_findings(verdict: Verdict) -> None:
    """Print the first findings of each rule in each file, and how many more there are."""
    seen: Counter[tuple[str, str]] = Counter()
    for finding in verdict.findings:
        seen[finding.rule, finding.path] += 1
        if seen[finding.rule, finding.path] <= _MOST_SHOWN:
            print_line(f"{finding.severity} {finding.rule} {finding.sentence}")
    if more := sum(count - _MOST_SHOWN for count in seen.values() if count > _MOST_SHOWN):
        print_line(f"  {more} more like these in the same files; --format json has all")


def _verdict(options: argparse.Namespace) -> Verdict:
    if options.ruleset == RULESET:
        return check_path(options.path, options.jobs)
    mode: Mode = options.mode or "as-published"
    return check_round(options.path, options.ruleset, mode, options.jobs)


def _check_mode(options: argparse.Namespace) -> None:
    known = known_rulesets()
    if options.ruleset not in known:
        reason = f"expected a ruleset out of {', '.join(known)}, found {options.ruleset!r:.80}"
        raise Refusal(f"{reason}; name one with --ruleset.", ExitCode.USAGE)
    if options.ruleset == RULESET and options.mode == "as-published":
        reason = f"expected --mode strict with ruleset {RULESET}, found as-published"
        raise Refusal(f"{reason}; choose another ruleset with --ruleset.", ExitCode.USAGE)
