"""Print verdicts in the words of MLPerf's package checker, for scripts that search its output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.cli.printing import print_line
from hybridperf.findings import Severity, visible
from hybridperf.rules.verdict import Outcome
from hybridperf.score.validity import Judgement
from hybridperf.tasks.mlperf import mlperf_benchmark

if TYPE_CHECKING:
    from hybridperf.findings import Finding
    from hybridperf.rules.verdict import ResultVerdict, Verdict

__all__ = ["print_like_package_checker"]

_BAR: Final = "------------------------------"
_SUCCESS: Final = "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS !"
_ERRORS: Final = "PACKAGE CHECKER FOUND ERRORS, LOOK INTO ERROR LOG LINES AND FIX THEM."
_IN_PART: Final = (
    "no errors by a part of the package checker; for all of it: --mode package --rcp-set FOLDER"
)


def print_like_package_checker(verdict: Verdict, *, converged: bool) -> None:
    """Print one block for each system and benchmark, and the sentence that scripts look for.

    ``converged`` tells whether convergence was tested: only then, and by more than the log checker,
    is there a sentence of success.
    """
    found: dict[str, list[Finding]] = {}
    for finding in verdict.findings:
        found.setdefault(finding.path, []).append(finding)
    for result in verdict.results:
        _print_result(result, found)
    for finding in verdict.errors_elsewhere:
        _say_finding(finding)
    whole = verdict.mode == "package" or (verdict.mode == "strict" and converged)
    _say("INFO", _ERRORS if not verdict.valid else _SUCCESS if whole else _IN_PART)
    _say("INFO", _BAR)


def _print_result(result: ResultVerdict, found: dict[str, list[Finding]]) -> None:
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
