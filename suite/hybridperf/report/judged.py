"""Read, judge and score results, of rounds of MLPerf and of this suite, in one pass."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Severity, visible
from hybridperf.log.log import Log
from hybridperf.log.rounds import find_packages, published_runs, read_package
from hybridperf.rules import check
from hybridperf.rules.mlperf.check_round import judge_result
from hybridperf.rules.mlperf.ruleset import known_rulesets, load_ruleset
from hybridperf.rules.verdict import Outcome
from hybridperf.score.official import official_of
from hybridperf.score.rcp_set import points_of
from hybridperf.score.score import SCORED_KEYS, edition_of
from hybridperf.score.validity import Validity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package, Result, SealedRun
    from hybridperf.score.official import Official
    from hybridperf.score.rcp import Mode
    from hybridperf.score.rcp_set import RcpSets

__all__ = ["UNFINISHED", "found_packages", "judged", "judged_score", "own_validity"]

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
    result, validity = judged(package)
    points = None if references is None else points_of(references, edition_of(package))
    official = replace(official_of(result, points, mode, validity), trust=validity.trust)
    bare = tuple(replace(run, curve=()) for run in official.score.runs)
    return replace(official, score=replace(official.score, runs=bare))


def judged(package: Package) -> tuple[Result, Validity]:
    """Read and judge a result: of a round, by its ruleset, if that knows the benchmark.

    Of the logs of a round, only what a score needs is kept, so that memory is that of one log.
    """
    edition = edition_of(package)
    ruleset = f"mlperf-training-{edition}.0"
    if not edition or ruleset not in known_rulesets():
        result = read_package(package)
        if all(run.manifest is None for run in result.runs):
            return result, Validity()
        own = check.judge_result(result)
        return result, replace(own_validity(result, own.findings), trust=own.trust)
    kept: list[SealedRun] = []

    def runs() -> Iterator[SealedRun]:
        for run in published_runs(package):
            kept.append(replace(run, log=_scored_part(run.log)))
            yield run

    verdict, _ = judge_result(package, runs(), load_ruleset(ruleset))
    result = read_package(package, kept)
    if verdict.outcome is Outcome.NOT_JUDGED:
        return result, Validity()
    errors = {
        run.number: visible(log.why)[:_MOST_CHARACTERS]
        for run, log in zip(kept, verdict.logs, strict=True)
        if log.outcome is Outcome.INVALID
    }
    return result, Validity(ruleset, len(kept), errors)


def _scored_part(log: Log) -> Log:
    found = [entry for key in SCORED_KEYS for entry in log.all(key)] + log.entries[-1:]
    unique = {id(entry): entry for entry in found}.values()
    return Log(log.path, sorted(unique, key=lambda entry: entry.line), log.findings)


def own_validity(result: Result, findings: Iterable[Finding]) -> Validity:
    """Return what ``findings`` in a result of this suite mean for its score."""
    errors = (each for each in findings if each.severity is Severity.ERROR)
    broken = next((each for each in errors if each.rule not in UNFINISHED), None)
    return Validity(check.RULESET, len(result.runs), broken=broken.sentence if broken else "")
