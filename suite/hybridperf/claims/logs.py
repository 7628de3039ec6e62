"""Readings of a claim from logs: results of this suite and of MLPerf's rounds, as published.

Every figure is computed by the function of the command that prints it: `hybridperf score`,
``compare`` and ``scale``. A result is judged as by these commands.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

from hybridperf.claims.claim import (
    SECONDS,
    CompareCheck,
    CountCheck,
    PlaceCheck,
    ScaleCheck,
    ScoreCheck,
)
from hybridperf.claims.verdict import ClaimReading, Evidence
from hybridperf.errors import UserError
from hybridperf.findings import visible
from hybridperf.log.package import edition_of, find_packages, only_result, read_package
from hybridperf.report.comparison import incomparable
from hybridperf.report.judgement import found_packages, judged_entries, judged_scores
from hybridperf.score.compare import compare
from hybridperf.score.metrics import METRICS
from hybridperf.score.ranking import means_of, standing_of, with_places
from hybridperf.score.scaling import metric_words, scale, side_of, speed_ratio
from hybridperf.score.statistics import Interval, estimate, ratio_interval
from hybridperf.untrusted import exists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hybridperf.claims.claim import ClaimedMetric, ClaimedValue
    from hybridperf.log.package import Package
    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.official import Official
    from hybridperf.score.scaling import Side

__all__ = ["Archive", "LogCheck", "evidence_of_logs"]

LogCheck = ScoreCheck | CompareCheck | ScaleCheck | PlaceCheck | CountCheck

#: columns of which the folder of a result tells the value
_OF_FOLDERS: Final[Mapping[str, Callable[[Package], str]]] = {
    "round": edition_of,
    "submitter": lambda package: package.org,
}
_PERCENT: Final = 100.0


class Archive:
    """The results at or below some folders; each is read and judged once."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(roots)
        self._packages: list[Package] | None = None
        self._officials: dict[Path, Official] = {}
        self._entries: dict[Path, JudgedResult] = {}
        self._sides: dict[Path, Side] = {}

    def package(self, name: str) -> Package:
        """Return the result in the folder ``name`` of the first root that has it.

        Raises:
            UserError: if no root has it, or if it is not one result.
        """
        for root in self.roots:
            if exists(root / name):
                return only_result(find_packages(root / name), root / name, "claims.result")
        below = " and ".join(map(str, self.roots))
        raise UserError.of(
            "claims.result",
            f"the result {name} below {below}",
            "no such folder",
            "name the folder that holds it with --root",
        )

    def entry(self, package: Package) -> JudgedResult:
        """Return a result with its judgement and score."""
        if package.folder not in self._entries:
            (self._entries[package.folder],) = judged_entries([package])
        return self._entries[package.folder]

    def side(self, package: Package) -> Side:
        """Return a result as one side of a ratio of speeds."""
        if package.folder not in self._sides:
            self._sides[package.folder] = side_of(read_package(package))
        return self._sides[package.folder]

    def officials(self, packages: Sequence[Package]) -> list[Official]:
        """Return the scores of results, without the curves of runs."""
        unread = [each for each in packages if each.folder not in self._officials]
        for package, official in zip(unread, judged_scores(unread), strict=True):
            self._officials[package.folder] = official
        return [self._officials[each.folder] for each in packages]

    def matching(self, where: Mapping[str, object]) -> list[tuple[Package, Official]]:
        """Return the results whose columns of `hybridperf score` have the values ``where``."""
        if self._packages is None:
            self._packages = found_packages(self.roots)
        # What the folder tells spares reading the logs.
        told = {name: of for name, of in _OF_FOLDERS.items() if name in where}
        packages = [
            each
            for each in self._packages
            if all(of(each) == where[name] for name, of in told.items())
        ]
        return [
            (package, official)
            for package, official in zip(packages, self.officials(packages), strict=True)
            if all(METRICS[name].source(official) == value for name, value in where.items())
        ]

    def board(self, package: Package) -> list[tuple[Package, Official]]:
        """Return the results of the leaderboard of ``package`` with a place, itself included.

        They are of one round, task, version and division, and of as many accelerators of MLPerf's
        systems, or of the same organisation and hardware of this suite's.
        """
        mine = self.officials([package])[0]
        near = [each for each in find_packages(package.root) if each.benchmark == package.benchmark]
        return [
            (each, official)
            for each, official in zip(near, self.officials(near), strict=True)
            if _board_of(official) == _board_of(mine) and standing_of(official)[0] == "ranked"
        ]


def _board_of(official: Official) -> tuple[object, ...]:
    score = official.score
    hardware: object = official.accelerators
    if official.own:
        hardware = (score.org, official.accelerator)
    return score.edition, score.benchmark, score.version, official.division, hardware


def evidence_of_logs(check: LogCheck, stated: ClaimedValue, archive: Archive) -> Evidence:
    """Return the readings of ``check`` in the unit of ``stated``, from the logs in ``archive``.

    A result that is not at hand, or that lacks a figure, leaves no readings; `Evidence.lacks` says
    why.
    """
    try:
        match check:
            case ScoreCheck():
                return _score(check, stated, archive)
            case CompareCheck():
                return _compare(check, stated, archive)
            case ScaleCheck():
                return _scale(check, stated, archive)
            case PlaceCheck():
                return _place(check, archive)
            case CountCheck():
                return _count(check, archive)
    except UserError as error:
        return Evidence((), lacks=str(error).removesuffix("."))


# A column of one result


def _score(check: ScoreCheck, stated: ClaimedValue, archive: Archive) -> Evidence:
    package = archive.package(check.result)
    (official,) = archive.officials([package])
    metric = METRICS[check.metric]
    value = metric.source(official)
    if not isinstance(value, int | float) or not math.isfinite(value):
        why = official.no_score[1] or standing_of(official)[1]
        return Evidence((), lacks=f"{package.name} has no {metric.name}{why and f': {why}'}")
    factor = _factor(metric.unit, stated.unit)
    low = high = None
    interval, time_s = official.score.interval_s, official.score.time_s
    timed = {"mean_s"} if official.own else {"olympic_minutes", "official_minutes"}
    if interval is not None and time_s and check.metric in timed:
        low, high = (value * factor * end / time_s for end in (interval.low, interval.high))
    command = f"hybridperf score {_quoted(package.folder)} --json"
    reading = ClaimReading(value * factor, {}, low, high, command=command)
    return Evidence((reading,), notes=_of_standing(official))


def _factor(unit: str, stated: str) -> float:
    """Return the factor from the unit of a column to the unit of a claim."""
    if stated == "%":
        return _PERCENT
    return SECONDS[unit] / SECONDS[stated] if unit in SECONDS else 1.0


def _of_standing(official: Official) -> tuple[str, ...]:
    standing, why = standing_of(official)
    return () if standing == "ranked" else (f"the result is {standing}: {why}",)


# Ratios to bases


def _compare(check: CompareCheck, stated: ClaimedValue, archive: Archive) -> Evidence:
    results = [archive.package(name) for name in check.results]
    bases = [archive.package(name) for name in check.bases]
    if check.where:
        bases += [package for package, _ in archive.matching(check.where)]
    bases = [each for each in dict.fromkeys(bases) if each not in results]
    if not bases:
        words = ", ".join(f"{name} {value}" for name, value in check.where.items())
        return Evidence((), lacks=f"no other result at hand has {visible(words)}")
    pairs, unlike = [], []
    for result in results:
        for base in bases:
            why = incomparable(archive.entry(base), archive.entry(result), result.name)
            if why is None:
                pairs.append((base, result))
            elif check.where or len(results) == 1:
                unlike.append(why.sentence.removesuffix("."))
    if not pairs:
        return Evidence((), lacks=next(iter(unlike), "no result and base are of one task"))
    readings, notes = [], []
    for base, result in pairs:
        for metric in check.metrics:
            reading = _ratio(archive, base, result, metric, stated)
            if reading is None:
                figures = _WORDS[metric]
                notes.append(f"{base.name} and {result.name} have no {figures} to compare")
            else:
                conditions = _conditions(archive, check, (base, result), metric, len(results))
                readings.append(replace(reading, conditions=conditions))
        notes += _scores(archive, base, result, saved="saving" in check.metrics)
    lacks = "" if readings else next(iter(notes))
    strongest = tuple(_strongest(archive, results, bases, check.metrics[0], stated))
    return Evidence(tuple(readings), strongest, tuple(dict.fromkeys(notes)), lacks)


_WORDS: Final[Mapping[ClaimedMetric, str]] = {
    "time": "time to train",
    "saving": "time saved",
    "end_to_end_throughput": metric_words("end_to_end_throughput"),
    "steady_throughput": metric_words("steady_throughput"),
    "samples": "samples to target",
}


def _conditions(
    archive: Archive,
    check: CompareCheck,
    pair: tuple[Package, Package],
    metric: ClaimedMetric,
    results: int,
) -> dict[str, str]:
    """Return what a ratio holds for: what differs between the pairs, and the metric."""
    base, result = pair
    official = archive.entry(base).official
    conditions = {"base": visible(f"{base.org} {base.system}")}
    if official.accelerator and not official.own:
        conditions["accelerator of the base"] = visible(official.accelerator)
    if results > 1:
        conditions["task"] = visible(archive.entry(result).benchmark)
        conditions["result"] = visible(f"{result.org} {result.system}")
    if len(check.metrics) > 1:
        conditions["metric"] = _WORDS[metric]
    return conditions


def _ratio(
    archive: Archive,
    base: Package,
    result: Package,
    metric: ClaimedMetric,
    stated: ClaimedValue,
) -> ClaimReading | None:
    """Return a comparison of ``result`` with ``base`` by ``metric``; None if it is unknown."""
    command = f"hybridperf compare {_quoted(base.folder)} {_quoted(result.folder)}"
    if metric == "end_to_end_throughput" or metric == "steady_throughput":
        speeds = speed_ratio(archive.side(base), archive.side(result), metric)
        if speeds is None:
            return None
        return _gain(speeds.value, speeds.interval, stated, speeds.value - 1, command)
    a, b = archive.entry(base).official, archive.entry(result).official
    decision = compare(a, b).decision
    if metric == "samples":
        # Of a result that never reached the target, too: lower bounds, which show that it is worse.
        samples = [[run.least_samples for run in each.score.compared] for each in (a, b)]
        if means_of(a) is None or not all(map(fmean, filter(None, samples))) or not all(samples):
            return None
        ratio = fmean(samples[1]) / fmean(samples[0])
        return _gain(ratio, _samples_interval(a, b), stated, 1 / ratio - 1, command)
    if not decision.ratio:
        return None
    ratio, interval = decision.ratio, decision.interval
    if metric == "saving":
        reading = _gain(ratio, interval, stated, 1 / ratio - 1, command)
        low, high = (None if end is None else -end for end in (reading.high, reading.low))
        saved = -reading.value
        return ClaimReading(
            saved, {}, low, high, reading.distinguishable, command, reading.advantage
        )
    inverse = interval and Interval(
        1 / interval.high, 1 / interval.low if interval.low else math.inf
    )
    return _gain(1 / ratio, inverse, stated, 1 / ratio - 1, command)


def _samples_interval(a: Official, b: Official) -> Interval | None:
    """Return the interval of the samples to target of ``b`` over ``a``, open where runs missed."""
    interval = ratio_interval(
        *(estimate([run.least_samples for run in each.score.compared]) for each in (a, b))
    )
    if interval is None:
        return None
    high = math.inf if b.score.missed else interval.high
    return Interval(0.0 if a.score.missed else interval.low, high)


def _gain(
    ratio: float, interval: Interval | None, stated: ClaimedValue, advantage: float, command: str
) -> ClaimReading:
    """Return a ratio as a gain in per cent, or as it is, as ``stated`` is."""

    def shown(value: float) -> float:
        return _PERCENT * (value - 1) if stated.unit == "%" else value

    decided = interval is not None and not interval.low <= 1 <= interval.high
    low, high = (shown(interval.low), shown(interval.high)) if interval else (None, None)
    return ClaimReading(shown(ratio), {}, low, high, decided, command, advantage)


def _scores(archive: Archive, base: Package, result: Package, *, saved: bool) -> Iterator[str]:
    """Yield MLPerf's scores of a pair, where `compare` is by other means, and runs that missed."""
    pair = [archive.entry(each).official for each in (base, result)]
    minutes = [each.minutes for each in pair]
    name = visible(f"{base.org} {base.system}")
    if not any(each.own for each in pair) and minutes[0] and minutes[1]:
        times = " and ".join(f"{each * 60:.2f} s" for each in minutes if each)
        gain = f"{_PERCENT * (minutes[0] / minutes[1] - 1):+.1f} %"
        if saved:
            gain = f"{_PERCENT * (1 - minutes[1] / minutes[0]):.1f} % less"
        yield f"official scores of {name} and of the result: {times}, {gain}"
    for each in pair:
        if each.score.missed:
            who = visible(f"{each.score.org} {each.score.system}, {each.score.benchmark}")
            runs = f"{each.score.missed} of {len(each.score.compared)} runs"
            yield f"{who}: {runs} missed the target or have an invalid log: a lower bound"


def _strongest(
    archive: Archive,
    results: Sequence[Package],
    bases: Sequence[Package],
    metric: ClaimedMetric,
    stated: ClaimedValue,
) -> Iterator[ClaimReading]:
    """Yield the readings over the fastest other results of the boards, unless they are bases."""
    for result in results:
        times = {
            package: official.score.time_s
            for package, official in archive.board(result)
            if package not in results and official.score.time_s is not None
        }
        if times and (first := min(times, key=lambda each: times[each] or 0.0)) not in bases:
            reading = _ratio(archive, first, result, metric, stated)
            if reading is not None:
                conditions = {"base": visible(f"{first.org} {first.system}")}
                if len(results) > 1:
                    conditions["task"] = visible(archive.entry(result).benchmark)
                    conditions["result"] = visible(f"{result.org} {result.system}")
                yield replace(reading, conditions=conditions)


# Efficiency, places and numbers


def _scale(check: ScaleCheck, stated: ClaimedValue, archive: Archive) -> Evidence:
    packages = [archive.package(name) for name in (check.base, check.result)]
    sides = [archive.side(each) for each in packages]
    scaling = scale(sides)
    if scaling.base is not sides[0]:
        return Evidence((), lacks=f"{check.base} has no fewer devices than {check.result}")
    (scaled,) = scaling.results
    paths = ",".join(str(each.folder) for each in packages)
    command = f"hybridperf scale --from {shlex.quote(paths)}"
    factor = _PERCENT if stated.unit == "%" else 1.0
    readings, notes = [], [visible(note) for note in scaled.notes]
    for one in scaled.efficiencies:
        if one.metric not in check.metrics:
            continue
        if one.value is None or not one.rated:
            notes.append(f"no efficiency by {metric_words(one.metric)}: {visible(one.why)}")
            continue
        named = {"metric": metric_words(one.metric)} if len(check.metrics) > 1 else {}
        low, high = (None if end is None else end * factor for end in one.ends)
        if one.interval is not None and high is None:
            high = math.inf
        readings.append(ClaimReading(one.value * factor, named, low, high, command=command))
    lacks = "" if readings else notes[-1]
    return Evidence(tuple(readings), notes=tuple(notes), lacks=lacks)


def _place(check: PlaceCheck, archive: Archive) -> Evidence:
    package = archive.package(check.result)
    found = archive.matching(check.where)
    words = visible(", ".join(f"{name} {value}" for name, value in check.where.items()))
    ranked = [(each, one) for each, one in found if standing_of(one)[0] == "ranked"]
    if package not in [each for each, _ in ranked]:
        (mine,) = archive.officials([package])
        why = standing_of(mine)[1] or f"it is none of the results with {words}"
        return Evidence((), lacks=f"{package.name} has no place: {why}")
    groups = {
        (one.score.edition, one.score.benchmark, one.score.version, one.division)
        for _, one in ranked
    }
    if len(groups) > 1:
        lacks = f"the results with {words} are of {len(groups)} leaderboards, not of one"
        return Evidence((), lacks=lacks)
    times = [_ranking_s(one) for _, one in ranked]
    at = next(nth for nth, (each, _) in enumerate(ranked) if each == package)
    place = with_places([one for _, one in ranked])[at].place
    position = 1 + sum(time_s < times[at] for time_s in times)
    low, high = (place.best, place.worst) if place else (None, None)
    order = sorted(range(len(times)), key=lambda nth: times[nth])
    orgs = Counter(each.org for each, _ in ranked)
    listed = [
        f"{visible(who.org if orgs[who.org] == 1 else f'{who.org} {who.system}')} {time_s:.2f} s"
        for nth in order[: max(5, position)]
        for who, time_s in [(ranked[nth][0], times[nth])]
    ]
    reading = ClaimReading(
        *(position, {}, low, high, low == high),
        command=f"hybridperf score {' '.join(_quoted(root) for root in archive.roots)} --json",
    )
    notes = (f"{len(ranked)} results with {words}: {', '.join(listed)}",)
    return Evidence((reading,), notes=notes)


def _ranking_s(official: Official) -> float:
    """Return the seconds by which places are counted: MLPerf's official score, or the mean."""
    if official.minutes is not None and not official.own:
        return official.minutes * 60
    return official.score.time_s or math.inf


def _count(check: CountCheck, archive: Archive) -> Evidence:
    if check.names:
        names = sorted(set(check.names))
        note = visible(f"named in the file of claims: {', '.join(names)}")
        return Evidence((ClaimReading(float(len(names))),), notes=(note,))
    found = archive.matching(check.where)
    if not found:
        words = visible(", ".join(f"{name} {value}" for name, value in check.where.items()))
        return Evidence((), lacks=f"no result at hand has {words}")
    count = len({package.org for package, _ in found} if check.what == "organisations" else found)
    command = f"hybridperf score {' '.join(_quoted(root) for root in archive.roots)} --json"
    return Evidence((ClaimReading(float(count), command=command),))


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
