"""``hybridperf check``: check logs and results against the rules."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format, add_jobs
from hybridperf.cli.printing import print_json, print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.rules.check import RULESET, check_path
from hybridperf.rules.mlperf.check_round import check_round, choose_ruleset
from hybridperf.rules.mlperf.ruleset import known_rulesets

if TYPE_CHECKING:
    import argparse

    from hybridperf.rules.check import Verdict
    from hybridperf.rules.mlperf.check_round import Mode

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf check runs
hybridperf check runs --format junit > checked.xml
hybridperf check --rules
hybridperf check --explain log.chain
hybridperf check training_results_v2.1 --ruleset mlperf-training-2.1.0 --mode as-published"""

_MOST_SHOWN: Final = 3  # findings of a rule in a file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf check``."""
    parser.add_argument(
        "path", type=Path, nargs="?", help="log file, result folder, submission or round"
    )
    parser.add_argument(
        "--ruleset",
        metavar="NAME",
        help="rules to judge by, such as mlperf-training-2.1.0 (default: that of the round whose "
        "folder training_results_v<round> the path is in or holds, else hybridperf-1.0)",
    )
    parser.add_argument(
        "--mode",
        choices=("strict", "as-published"),
        help="all rules, or those that the official checker of an MLPerf round applied "
        "(default: strict by our ruleset, as-published by one of MLPerf)",
    )
    add_format(parser, "text", "json", "junit")
    add_jobs(parser)
    about = parser.add_mutually_exclusive_group()
    about.add_argument("--rules", action="store_true", help="list the rules of the ruleset")
    about.add_argument("--explain", metavar="RULE", help="say what a rule asks for, and why")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print the findings and a summary, or the rules; exit status 3 if anything is invalid."""
    if options.ruleset is None:
        options.ruleset = RULESET if options.path is None else choose_ruleset(options.path)
    _check_mode(options)
    if options.rules or options.explain is not None:
        from hybridperf.cli.rule_pages import print_rule, print_rules

        return print_rules(options) if options.rules else print_rule(options)
    if options.path is None:
        reason = "expected a log or a folder to check, found none; name its path"
        raise UserError(f"{reason}, or see 'hybridperf check --help'.", ExitCode.USAGE)
    verdict = _verdict(options)
    if options.format == "json":
        print_json(verdict.as_json())
    elif options.format == "junit":
        from hybridperf.report.junit import junit_xml

        print_line(junit_xml(verdict))
    else:
        _print_findings(verdict)
        counts = Counter(finding.rule for finding in verdict.findings)
        for rule, count in sorted(counts.items()):
            print_line(f"  {count} x {rule}")
        for each in verdict.results:
            lacks = f"; {each.trust.lacks}" if each.trust.lacks else ""
            print_line(f"{each.name}: {each.trust.words}{lacks}")
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
        raise UserError(f"{reason}; name one with --ruleset.", ExitCode.USAGE)
    if options.ruleset == RULESET and options.mode == "as-published":
        reason = f"expected --mode strict with ruleset {RULESET}, found as-published"
        raise UserError(f"{reason}; choose another ruleset with --ruleset.", ExitCode.USAGE)
