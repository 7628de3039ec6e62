"""Read, judge and score results, of rounds of MLPerf and of this suite, in one pass.

The judgement is the one of ``hybridperf check``; score, compare, report and pytest share it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import UNREADABLE, Severity, visible
from hybridperf.log import keys
from hybridperf.log.log import Log
from hybridperf.log.package import (
    edition_of,
    find_packages,
    find_results,
    has_manifests,
    published_runs,
    read_package,
    read_result,
)
from hybridperf.parallel_map import parallel_map
from hybridperf.rules import check
from hybridperf.rules.mlperf.ruleset import known_benchmarks, known_rulesets
from hybridperf.rules.verdict import Outcome
from hybridperf.score.convergence import benchmark_of
from hybridperf.score.official import Official, official_of
from hybridperf.score.ranking import standing_of
from hybridperf.score.rcp import points_of
from hybridperf.score.score import SCORED_KEYS
from hybridperf.score.validity import Judgement, Validity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from hybridperf.findings import Finding
    from hybridperf.log.package import Package, Result, SealedRun
    from hybridperf.rules.verdict import ResultVerdict
    from hybridperf.score.ranking import Standing
    from hybridperf.score.rcp import Mode, RcpSets
    from hybridperf.score.score import ResultScore

__all__ = [
    "JudgedResult",
    "found_packages",
    "judged_entries",
    "judged_scores",
    "no_results",
    "read_entries",
]

_MOST_CHARACTERS: Final = 300  #: of an error
#: keys of the manifest that pages show
_SHOWN: Final = (
    *("outcome", "reason", "task", "code", "data_sha256", "system", "log", "rescoring"),
    *("command", "overrides"),
)


def found_packages(paths: Iterable[Path], barred: list[Finding] | None = None) -> list[Package]:
    """Return every result at or below ``paths``, each once, in the order of the paths.

    Findings on unreadable files and folders are appended to ``barred``.

    Raises:
        UserError: as `find_packages`.
    """
    found = (package for path in paths for package in find_packages(path, barred))
    return list({package.folder: package for package in found}.values())


def no_results(paths: Iterable[Path]) -> UserError:
    """Return the error, of exit status 4, that there are no results at ``paths``."""
    return UserError.of(
        "score.path",
        "results in <org>/results/<system>/<benchmark>",
        "none",
        "make some with 'hybridperf run'",
        path=", ".join(map(str, paths)),
        exit_code=ExitCode.ENVIRONMENT,
    )


@dataclass(frozen=True, slots=True)
class JudgedResult:
    """A result with its official score and its findings."""

    result: Result
    official: Official
    findings: tuple[Finding, ...]

    @property
    def score(self) -> ResultScore:
        """Return the score, without the place."""
        return self.official.score

    @property
    def errors(self) -> list[Finding]:
        """Return the findings that make the result invalid."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    @property
    def valid(self) -> bool:
        """Tell whether the result is valid."""
        return self.official.validity.judgement is Judgement.VALID

    @property
    def standing(self) -> Standing:
        """Return whether the result is ranked, or else the category of the reason."""
        return standing_of(self.official)[0]

    @property
    def no_place(self) -> str:
        """Return the reason why the result has no place; "" if it has one."""
        return standing_of(self.official)[1]

    @property
    def benchmark(self) -> str:
        """Return the task name in the logs, or else the name of the result's folder."""
        return self.score.benchmark or self.result.package.benchmark

    @property
    def anchor(self) -> str:
        """Return the HTML id of the result, a function of organisation, system and benchmark."""
        package = self.result.package
        names = (package.org, package.system, package.benchmark)
        digest = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        words = re.sub(r"[^a-z0-9]+", "-", "-".join(names).lower()).strip("-")
        return f"result-{words[:80]}-{digest[:8]}"

    def task_fact(self, *keys: str) -> str:
        """Return a string of the task in the first run's manifest; ``""`` if there is none."""
        runs = self.result.runs
        value = runs[0].fact("task", *keys) if runs else None
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True)
class _Judgement:
    """A result as it was read, with the judgement on it."""

    result: Result
    validity: Validity
    findings: tuple[Finding, ...]
    own: check.Judged | None = None  #: the verdict of this suite's rules; None for MLPerf's results


def judged_scores(
    packages: Sequence[Package],
    references: RcpSets | None = None,
    mode: Mode | None = None,
    jobs: int = 1,
    barred: list[Finding] | None = None,
    ruleset: str | Path | None = None,
    *,
    curves: bool = False,
) -> list[Official]:
    """Read, judge and score results, without the logs, and without the curves of runs by default.

    ``references`` and ``mode`` are arguments of `official_of`. Findings on unreadable files are
    appended to ``barred``. ``ruleset`` judges MLPerf results whose folder names no round.
    """
    pairs = []
    score = partial(_scored, references=references, mode=mode, ruleset=ruleset, curves=curves)
    for official, own, locked in parallel_map(score, packages, jobs):
        pairs.append((official, own))
        if barred is not None:
            barred += locked
    return [official for official, _ in _compared(pairs)]


def read_entries(root: Path, barred: list[Finding] | None = None) -> list[JudgedResult]:
    """Return every result of this suite at or below ``root``, sorted by name.

    Of each run, only the part that pages show is kept. Findings on unreadable files and folders are
    appended to ``barred``.

    Raises:
        UserError: as `find_results`.
    """
    found = (_judged(package) for package in find_results(root, barred))
    return _entries(found, barred, _shown_part)


def judged_entries(packages: Sequence[Package]) -> list[JudgedResult]:
    """Read, judge and score results, with their complete runs."""
    return _entries(map(_judged, packages))


def _entries(
    found: Iterable[_Judgement],
    barred: list[Finding] | None = None,
    kept: Callable[[SealedRun], SealedRun] = lambda run: run,
) -> list[JudgedResult]:
    """Return results with their scores, after reduction of each run by ``kept``."""
    read, pairs = [], []
    for one in found:
        if barred is not None:
            barred += (each for each in one.findings if each.rule == UNREADABLE)
        pairs.append((official_of(one.result, one.validity), one.own))
        runs = tuple(map(kept, one.result.runs))
        read.append((replace(one.result, runs=runs), one.findings))
    return [
        JudgedResult(result, official, again.findings if again else findings)
        for (result, findings), (official, again) in zip(read, _compared(pairs), strict=True)
    ]


def _scored(
    package: Package,
    references: RcpSets | None,
    mode: Mode | None,
    ruleset: str | Path | None,
    *,
    curves: bool,
) -> tuple[Official, check.Judged | None, list[Finding]]:
    found = _judged(package, ruleset)
    points = None if references is None else points_of(references, edition_of(package))
    official = official_of(found.result, found.validity, points, mode)
    if not curves:
        bare = tuple(replace(run, curve=()) for run in official.score.runs)
        official = replace(official, score=replace(official.score, runs=bare))
    return official, found.own, [each for each in found.findings if each.rule == UNREADABLE]


def _compared(
    scored: Sequence[tuple[Official, check.Judged | None]],
) -> list[tuple[Official, check.Judged | None]]:
    """Add findings on runs that several results of this suite share, and judge those again."""
    compared = iter(check.compared(own for _, own in scored if own is not None))
    every = list[tuple[Official, check.Judged | None]]()
    for official, own in scored:
        again = None if own is None else next(compared)
        if own and again and len(again.findings) > len(own.findings):
            official = replace(official, validity=_validity(again.verdict), trust=again.trust)
        every.append((official, again))
    return every


def _judged(package: Package, ruleset: str | Path | None = None) -> _Judgement:
    """Read and judge a result by the ruleset of its round, if it is of one, else by our own.

    Of the logs of a round, only the lines that a score needs are kept: the memory is one log's.
    """
    if edition := edition_of(package):
        return _judged_of_round(package, f"mlperf-training-{edition}.0")
    if not has_manifests(package):
        result = read_package(package)
        if result.runs and benchmark_of(result.runs[0].log, "") in known_benchmarks():
            if ruleset is not None:
                return _judged_of_round(package, ruleset)
            why = "logs of MLPerf, in no folder training_results_v<round>; name their --ruleset"
            return _Judgement(result, Validity(Judgement.NOT_JUDGED, why), result.findings)
    result = read_result(package)
    own = check.judge_result(result)
    return _Judgement(result, _validity(own.verdict), own.findings, own)


def _judged_of_round(package: Package, ruleset: str | Path) -> _Judgement:
    if isinstance(ruleset, str) and ruleset not in known_rulesets():
        result = read_package(package)
        validity = Validity(Judgement.NOT_JUDGED, f"no ruleset {ruleset}")
        return _Judgement(result, validity, result.findings)
    kept: list[SealedRun] = []

    def runs() -> Iterator[SealedRun]:
        for run in published_runs(package):
            kept.append(replace(run, log=_scored_part(run.log)))
            yield run

    judged = check.judge_logs(package, runs(), ruleset)
    validity = _validity(judged.verdict)
    if validity.judgement is not Judgement.NOT_JUDGED:
        errors = {
            run.number: visible(log.why)[:_MOST_CHARACTERS]
            for run, log in zip(kept, judged.verdict.logs, strict=True)
            if log.outcome is Outcome.INVALID
        }
        validity = replace(validity, errors=errors)
    return _Judgement(read_package(package, kept), validity, judged.findings)


def _validity(verdict: ResultVerdict) -> Validity:
    """Return the validity of a score by ``verdict``."""
    judgement, why = verdict.judgement, visible(verdict.why)[:_MOST_CHARACTERS]
    if judgement is Judgement.VALID:
        why = ""
    return Validity(judgement, why, verdict.ruleset, len(verdict.logs), trust=verdict.trust)


def _shown_part(run: SealedRun) -> SealedRun:
    """Return a run with only the facts, interruptions and timelines that pages show."""
    log = run.log
    entries = log.all(keys.RESUMED)
    for entry in (*log.all(keys.TRACKED_STATS), *log.all(keys.PROJECTION)):
        if isinstance(entry.value, dict) and "timeline" in entry.value:
            entries = [*entries, entry]
    facts = run.manifest and {name: run.manifest.get(name) for name in _SHOWN}
    shown = Log(log.path, entries, log.findings, log.chained, log.last_hash, log.sha256)
    return replace(run, log=shown, manifest=facts)


def _scored_part(log: Log) -> Log:
    found = [entry for key in SCORED_KEYS for entry in log.all(key)] + log.entries[-1:]
    unique = {id(entry): entry for entry in found}.values()
    return Log(log.path, sorted(unique, key=lambda entry: entry.line), log.findings)
