"""``hybridperf check``: check logs and results against the rules."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format, add_jobs
from hybridperf.cli.printing import print_json, print_line, say_barred
from hybridperf.errors import ExitCode, UserError
from hybridperf.rules.check import check_paths
from hybridperf.rules.mlperf.ruleset import known_rulesets
from hybridperf.rules.targets import choose_ruleset
from hybridperf.rules.verdict import RULESET
from hybridperf.score.rcp import read_rcp_sets

if TYPE_CHECKING:
    import argparse

    from hybridperf.rules.verdict import Verdict

__all__ = ["EXAMPLES", "add_arguments", "execute", "named_ruleset"]

EXAMPLES: Final = """\
hybridperf check runs
hybridperf check runs --format junit > checked.xml
hybridperf check submissions --publish
hybridperf check --rules
hybridperf check --explain log.chain
hybridperf check training_results_v4.1 --jobs
hybridperf check training_results_v*/NVIDIA --mode strict
hybridperf check training_results_v5.1/NVIDIA --mode package --rcp-set rcps --format mlperf"""

_OF_MLPERF: Final = frozenset({"as-published", "package"})  #: modes that our ruleset does not have


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf check``."""
    parser.add_argument(
        "paths",
        type=Path,
        nargs="*",
        metavar="PATH",
        help="log files, result folders, submissions or rounds",
    )
    parser.add_argument(
        "--ruleset",
        metavar="NAME",
        help="rules to judge by, such as mlperf-training-2.1.0, or the file of a ruleset "
        "(default: that of the round whose folder training_results_v<round> a result is in, else "
        "hybridperf-1.0)",
    )
    parser.add_argument(
        "--mode",
        choices=("strict", "as-published", "package"),
        help="all rules, or those of an MLPerf round's log checker, or of its package checker "
        "(default: strict by our ruleset, as-published by one of MLPerf)",
    )
    parser.add_argument(
        "--rcp-set",
        type=Path,
        metavar="FOLDER",
        help="folder of MLCommons' reference convergence points, as for 'hybridperf score': "
        "modes package and strict test convergence like the package checker",
    )
    parser.add_argument("--verbose", action="store_true", help="print every finding")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="for a leaderboard: results may be valid or honestly not converge, none provisional",
    )
    add_format(parser, "text", "json", "junit", "mlperf")
    add_jobs(parser)
    about = parser.add_mutually_exclusive_group()
    about.add_argument("--rules", action="store_true", help="list the rules of the ruleset")
    about.add_argument("--explain", metavar="RULE", help="say what a rule asks for, and why")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print the findings and a summary, or the rules.

    The exit status is by the judgements on the results (docs/commands.md); 4 if a file or folder
    cannot be read.
    """
    ruleset = None if options.ruleset is None else named_ruleset(options.ruleset)
    if options.rules or options.explain is not None:
        from hybridperf.cli.check_screen import print_rule, print_rules

        if ruleset is None:
            ruleset = choose_ruleset(options.paths[0]) if options.paths else RULESET
        _check_mode(ruleset, options.mode)
        printed = print_rules if options.rules else print_rule
        return printed(options, ruleset)
    if not options.paths:
        reason = "expected a log or a folder to check, found none; name its path"
        raise UserError(f"{reason}, or see 'hybridperf check --help'.", ExitCode.USAGE)
    if options.mode in _OF_MLPERF:  # before work that may take long
        _check_mode(ruleset or choose_ruleset(options.paths[0]), options.mode)
    references = read_rcp_sets(options.rcp_set) if options.rcp_set else None
    verdict, warnings = check_paths(options.paths, ruleset, options.mode, options.jobs, references)
    _check_mode(verdict.ruleset, options.mode)
    for warning in warnings:
        sys.stderr.write(f"hybridperf: {warning}\n")
    _print(verdict, options)
    return say_barred(verdict.unreadable) or verdict.status(publish=options.publish)


def _print(verdict: Verdict, options: argparse.Namespace) -> None:
    if options.format == "json":
        print_json(verdict.as_json())
    elif options.format == "junit":
        from hybridperf.report.junit import junit_xml

        print_line(junit_xml(verdict))
    elif options.format == "mlperf":
        from hybridperf.cli.check_screen import print_like_package_checker

        print_like_package_checker(verdict, converged=options.rcp_set is not None)
    else:
        from hybridperf.cli.check_screen import print_verdict

        print_verdict(verdict, verbose=options.verbose)


def named_ruleset(text: str) -> str | Path:
    """Return the known ruleset or the file that ``text`` names.

    Raises:
        UserError: exit status 2 if it names neither.
    """
    known = known_rulesets()
    if text in known:
        return text
    if text.endswith(".toml") and os.path.lexists(text):
        return Path(text)
    reason = f"expected a ruleset out of {', '.join(known)}, or the file of one, found {text!r:.80}"
    raise UserError(f"{reason}; name one with --ruleset.", ExitCode.USAGE)


def _check_mode(ruleset: str | Path | None, mode: str | None) -> None:
    if ruleset == RULESET and mode in _OF_MLPERF:
        reason = f"expected --mode strict with ruleset {RULESET}, found {mode}"
        raise UserError(f"{reason}; choose another ruleset with --ruleset.", ExitCode.USAGE)
