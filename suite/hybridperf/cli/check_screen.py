"""Print verdicts, for people and as the official package checker of MLPerf does; and rules."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_json, print_line, print_table, terminal_width
from hybridperf.errors import ExitCode
from hybridperf.findings import UNREADABLE, Severity, visible
from hybridperf.report.terminal import wrapped
from hybridperf.rules.explain import explain, explain_all
from hybridperf.rules.verdict import RULESET, Outcome, word_of
from hybridperf.score.validity import Judgement
from hybridperf.tasks.mlperf import mlperf_benchmark

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.rules.verdict import ResultVerdict, Verdict

__all__ = ["print_like_package_checker", "print_rule", "print_rules", "print_verdict"]

_INDENT: Final = "    "
_WORST_FIRST: Final = (
    *(Judgement.BROKEN, Judgement.DISPUTED, Judgement.NOT_JUDGED, Judgement.PROVISIONAL),
    *(Judgement.MISSED, Judgement.WITHDRAWN, Judgement.SUPERSEDED, Judgement.VALID),
)
_OUTCOMES: Final = (Outcome.INVALID, Outcome.NOT_JUDGED, Outcome.VALID)
_MODES: Final = {
    "as-published": "as the checker of the round",
    "package": "as the package checker of the round",
}
_MOST_CHARACTERS: Final = 300  #: of the reason of a judgement
# Lines of the official package checker.
_BAR: Final = "------------------------------"
_SUCCESS: Final = "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"
_ERRORS: Final = "PACKAGE CHECKER FOUND ERRORS, LOOK INTO ERROR LOG LINES AND FIX THEM."
_IN_PART: Final = (
    "no errors by a part of the package checker; for all of it: --mode package --rcp-set FOLDER"
)


def print_verdict(verdict: Verdict, *, verbose: bool) -> None:
    """Print ``verdict``; with ``verbose`` every finding, else the first of each rule."""
    if verdict.results:
        _print_counts(verdict)
    if verbose:
        for finding in verdict.findings:
            _print_sentence(f"{word_of(finding)} {finding.rule} {finding.sentence}")
    else:
        _print_by_rule(verdict.findings)
    for judgement in _WORST_FIRST:
        for result in verdict.results:
            if result.judgement is judgement:
                _print_result(result)
    count = len(verdict.logs)
    word = _word_of_all(verdict)
    logs = f"{count} log{'s' if count != 1 else ''} checked"
    _print_sentence(f"{visible(verdict.path)}: {word} by {verdict.ruleset}, {logs}")


def _word_of_all(verdict: Verdict) -> str:
    """Return the worst judgement; errors outside of results are INVALID, as those of logs are."""
    said = {result.judgement for result in verdict.results}
    if not verdict.sound and Judgement.BROKEN not in said:
        return "INVALID"
    if verdict.unreadable and said <= {Judgement.VALID, Judgement.NOT_JUDGED}:
        return Judgement.NOT_JUDGED.value
    said -= {Judgement.NOT_JUDGED, Judgement.WITHDRAWN, Judgement.SUPERSEDED}
    return _word(next((each for each in _WORST_FIRST if each in said), Judgement.VALID))


def _print_counts(verdict: Verdict) -> None:
    print_line(f"judged by {verdict.ruleset}, {_MODES.get(verdict.mode, 'strictly')}")
    judgements = Counter(result.judgement for result in verdict.results)
    said = [f"{judgements[each]} {_word(each)}" for each in _WORST_FIRST if judgements[each]]
    _print_count("result", len(verdict.results), said[::-1])
    outcomes = Counter(log.outcome for log in verdict.all_logs)
    said = [f"{outcomes[each]} {_word(each)}" for each in _OUTCOMES if outcomes[each]]
    _print_count("log", len(verdict.all_logs), said[::-1])
    wrong = judgements[Judgement.BROKEN] or outcomes[Outcome.INVALID]
    if verdict.errors_elsewhere and not wrong:
        count = len(verdict.errors_elsewhere)
        noun = f"error{'s' if count != 1 else ''}"
        print_line(f"  {count:6} {noun} in other files than logs: INVALID as a whole")


def _print_count(noun: str, count: int, said: list[str]) -> None:
    name = f"{noun}{'s' if count != 1 else ''}"
    print_line(f"  {count:6} {name}: {', '.join(said) or 'none'}")


def _print_by_rule(findings: Iterable[Finding]) -> None:
    """Print the first finding of each rule and word, and how many more there are."""
    by_rule: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        by_rule[word_of(finding), finding.rule].append(finding)
    for (word, rule), here in sorted(by_rule.items()):
        shown = len(here) if rule == UNREADABLE else 1
        for finding in here[:shown]:
            _print_sentence(f"{word} {rule} {finding.sentence}")
        if len(here) > shown:
            places = len({finding.path for finding in here})
            files = f"{places} file{'s' if places != 1 else ''}"
            print_line(f"{_INDENT}{len(here) - 1} more of {rule}, in {files}; --verbose shows all")


def _print_result(result: ResultVerdict) -> None:
    valid = sum(log.outcome is Outcome.VALID for log in result.logs)
    division = f" {result.division}" if result.division else ""
    judged = result.judgement is not Judgement.NOT_JUDGED
    logs = f"{valid} of {len(result.logs)} logs valid" if judged else f"{len(result.logs)} logs"
    _print_sentence(f"{_word(result.judgement):10} {result.package.name}{division}, {logs}")
    if result.why:
        _print_sentence(f"{_INDENT}{visible(result.why)[:_MOST_CHARACTERS]}")
    if result.ruleset == RULESET:
        trust = result.trust
        more = "".join(f"; {words}" for words in (trust.unverified, trust.lacks) if words)
        _print_sentence(f"{_INDENT}{trust.words}{more}")


def _print_sentence(text: str) -> None:
    """Print ``text``, wrapped if people read it; programs find it on one line."""
    if not (sys.stdout.isatty() or "COLUMNS" in os.environ):
        print_line(text)
        return
    indent = text[: len(text) - len(text.lstrip())]
    lines = wrapped(text.lstrip(), terminal_width() - len(_INDENT) - len(indent))
    for number, line in enumerate(lines):
        print_line(f"{indent}{_INDENT if number else ''}{line}")


def _word(said: Judgement | Outcome) -> str:
    return said.upper() if said in {Judgement.BROKEN, Outcome.INVALID} else said.value


def print_rules(options: argparse.Namespace, ruleset: str | Path) -> ExitCode:
    """Print every rule of the ruleset, or those of the mode given."""
    rules = [
        each
        for each in explain_all(ruleset)
        if options.mode in (None, "strict", each.mode)
        or (options.mode == "package" and each.mode == "as-published")
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


def print_like_package_checker(verdict: Verdict, *, converged: bool) -> None:
    """Print one block for each system and benchmark, and the sentence that scripts look for.

    ``converged`` tells whether convergence was tested: only then, and by more than the log checker,
    is there a sentence of success.
    """
    found: dict[str, list[Finding]] = {}
    for finding in verdict.findings:
        found.setdefault(finding.path, []).append(finding)
    for result in verdict.results:
        _print_package_result(result, found)
    for finding in verdict.errors_elsewhere:
        _say_finding(finding)
    whole = verdict.mode == "package" or (verdict.mode == "strict" and converged)
    _say("INFO", _ERRORS if not verdict.valid else _SUCCESS if whole else _IN_PART)
    _say("INFO", _BAR)


def _print_package_result(result: ResultVerdict, found: dict[str, list[Finding]]) -> None:
    package = result.package
    if result.judgement is Judgement.NOT_JUDGED:
        _say("WARNING", f" Skipping benchmark: {package.benchmark}")
        return
    _say("INFO", _BAR)
    _say("INFO", f" Running compliance checks in dir {package.name}")
    _say("INFO", f" System {package.system}")
    _say("INFO", f" Benchmark {package.benchmark}")
    _say("INFO", _BAR)
    facts, count = mlperf_benchmark(package.benchmark), len(result.logs)
    if facts.runs is not None and count != facts.runs:
        _say(
            "ERROR",
            "Incorrect number of files in dir, or wrong file names in directory "
            f"{package.name}, found {count}, expected {facts.runs}",
        )
    for number, log in enumerate(result.logs, 1):
        _say("INFO", _BAR)
        _say("INFO", f"Run {number}/{count}")
        for finding in found.get(log.path, ()):
            _say_finding(finding)
    for finding in found.get(package.name, ()):
        if finding.rule != "checker.files":  # said above
            _say_finding(finding)
    wrong = sum(log.outcome is Outcome.INVALID for log in result.logs)
    if wrong == 1 and facts.drops == 1:
        _say("WARNING", " 1 file does not comply, accepting this under olympic scoring")
    elif 0 < wrong <= facts.drops:
        _say("WARNING", f" {wrong} files do not comply, accepting this under olympic scoring")
    elif wrong:
        _say("ERROR", f" {wrong} files do not comply, directory cannot be accepted")
    _say("INFO", _BAR)


def _say_finding(finding: Finding) -> None:
    _say("ERROR" if finding.severity is Severity.ERROR else "WARNING", finding.sentence)


def _say(level: str, text: str) -> None:
    print_line(f"{level} - {visible(text)}")
