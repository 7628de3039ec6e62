"""Print for people what was judged, findings by rule and one line for each result; and rules."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_json, print_line, print_table, terminal_width
from hybridperf.errors import ExitCode
from hybridperf.findings import UNREADABLE, visible
from hybridperf.report.terminal import wrapped
from hybridperf.rules.explain import explain, explain_all
from hybridperf.rules.verdict import RULESET, Outcome, word_of
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.rules.verdict import ResultVerdict, Verdict

__all__ = ["print_rule", "print_rules", "print_verdict"]

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
