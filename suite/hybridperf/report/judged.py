"""Read, judge and score results, of rounds of MLPerf and of this suite, in one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hybridperf.evidence.trust import Trust
from hybridperf.findings import Severity, visible
from hybridperf.log.rounds import find_packages, read_package
from hybridperf.rules.check import RULESET, judge_result
from hybridperf.rules.mlperf.check_round import check_published_result
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset
from hybridperf.score.convergence import benchmark_of
from hybridperf.score.official import official_of
from hybridperf.score.rcp_set import points_of
from hybridperf.score.score import edition_of
from hybridperf.score.validity import Validity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package, Result
    from hybridperf.score.official import Official
    from hybridperf.score.rcp import Mode
    from hybridperf.score.rcp_set import RcpSets

__all__ = ["UNFINISHED", "found_packages", "judged_score", "own_validity"]

UNFINISHED: Final = frozenset({"result.run_count"})  #: errors that additional runs resolve
_MOST_CHARACTERS: Final = 300  #: of an error


def found_packages(paths: Iterable[Path]) -> list[Package]:
    """Return every result at or below ``paths``, each once, in the order of the paths.

    Raises:
        UserError: as `find_packages`.
    """
    found = (package for path in paths for package in find_packages(path))
    return list({package.folder: package for package in found}.values())


def judged_score(
    package: Package, references: RcpSets | None = None, mode: Mode | None = None
) -> Official:
    """Read, judge and score the result ``package``; its curves, which no table shows, are left out.

    ``references`` and ``mode`` are those of `official_of`.
    """
    result = read_package(package)
    points = None if references is None else points_of(references, edition_of(package))
    validity, trust = _judged(result)
    official = replace(official_of(result, points, mode, validity), trust=trust)
    bare = tuple(replace(run, curve=()) for run in official.score.runs)
    return replace(official, score=replace(official.score, runs=bare))


def _judged(result: Result) -> tuple[Validity, Trust]:
    """Judge ``result``, and find its rung; those of rounds are self-reported."""
    if any(run.manifest is not None for run in result.runs):
        judged = judge_result(result)
        return own_validity(result, judged.findings), judged.trust
    return _validity_of_round(result), Trust()


def _validity_of_round(result: Result) -> Validity:
    """Judge the logs of ``result`` by the ruleset of its round, if that knows the benchmark."""
    edition = edition_of(result.package)
    ruleset = f"mlperf-training-{edition}.0"
    if not edition or not result.runs or ruleset not in known_rulesets():
        return Validity()
    rules = load_ruleset(ruleset)
    if benchmark_of(result.runs[0].log, result.package.benchmark) not in rules.benchmarks:
        return Validity()
    errors = {}
    for run in result.runs:
        found = check_published_result(replace(result, runs=(run,)), rules, "as-published")
        if wrong := _errors(found):
            errors[run.number] = _words(wrong[0])
    return Validity(ruleset, len(result.runs), errors)


def own_validity(result: Result, findings: Iterable[Finding]) -> Validity:
    """Return what ``findings`` in a result of this suite mean for its score."""
    broken = [each for each in _errors(findings) if each.rule not in UNFINISHED]
    return Validity(
        ruleset=RULESET,
        logs=len(result.runs),
        broken=broken[0].sentence if broken else "",
    )


def _errors(findings: Iterable[Finding]) -> list[Finding]:
    return [each for each in findings if each.severity is Severity.ERROR]


def _words(finding: Finding) -> str:
    """Return what is wrong, without the place and the remedy."""
    return visible(f"expected {finding.expected}, found {finding.found}")[:_MOST_CHARACTERS]
