"""Test convergence against reference convergence points (RCPs): read, prune, compare.

Source: MLPerf Training rules, section 13.
"""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.errors import UserError
from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.log.package import scaling_factor
from hybridperf.score.convergence import agreed_batch, amount, count_key
from hybridperf.score.run_score import stopped_well
from hybridperf.score.score import runs_of_result
from hybridperf.score.statistics import fewest_runs, olympic_mean, t_quantile, too_many_missed
from hybridperf.tasks.mlperf import mlperf_benchmark, official_tool
from hybridperf.tasks.registry import find_task, task_names
from hybridperf.untrusted import COUNT_CAP, number, read_object, reason, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hybridperf.log.log import Log
    from hybridperf.log.package import Result
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore
    from hybridperf.tasks.mlperf import OfficialTool

__all__ = [
    "Mode",
    "Point",
    "RcpSet",
    "RcpSets",
    "RcpTest",
    "RcpVerdict",
    "Reference",
    "compare_with_references",
    "convergence_by_tool",
    "convergence_of",
    "points_of",
    "prune",
    "published_factor",
    "read_rcp_set",
    "read_rcp_sets",
    "reference_point",
    "task_references",
]

_ALPHA: Final = 0.05
_PREFIX: Final = "rcps_"
_AMOUNTS: Final = ("Epochs to converge", "samples to converge")  #: MLCommons' keys, by benchmark

#: folder of a round's points: ``v2.1``, or ``training_2.1.0`` as in MLCommons' package
_OF_ROUND: Final = re.compile(r"(?:v|training_)([0-9]{1,3}\.[0-9]{1,3})(?:\.0)?")

#: ``rules``: computed by the MLPerf Training rules; ``compat``: computed like the official tool of
#: the round; ``published``: taken from the files that a round published with its logs
Mode = Literal["rules", "compat", "published"]


@dataclass(frozen=True, slots=True)
class RcpTest:
    """Parameters of a convergence test: by the rules, or like the official tool of a round."""

    runs: int  #: required runs of a result
    drops: int  #: runs that the olympic mean drops at either end
    grace: float = 0.0  #: amount by which the limit may be missed
    tool: OfficialTool | None = None  #: tool to imitate; None: by the rules

    @property
    def scored(self) -> int:
        """Return the sample size of the result.

        The official tool takes two runs from it, also where the mean leaves out more.
        """
        return self.runs - 2 * (1 if self.tool else self.drops)


@dataclass(frozen=True, slots=True)
class Reference:
    """Epochs or samples to convergence of the reference runs at one batch size."""

    batch_size: int
    amounts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A reference convergence point, measured or interpolated between two measured ones."""

    batch_size: int
    mean: float  #: olympic mean
    stdev: float
    runs: int  #: sample size used in the test


RcpSet = dict[str, tuple[Reference, ...]]  #: reference points by benchmark
RcpSets = dict[str, RcpSet]  #: sets by round, such as ``2.1``; "" for all other results


def task_references(benchmark: str) -> tuple[Reference, ...]:
    """Return the reference convergence points of a task of this suite, in samples."""
    if benchmark not in task_names() or (own := find_task(benchmark).reference) is None:
        return ()
    return (Reference(own.global_batch_size, tuple(map(float, own.samples_to_target))),)


def points_of(sets: RcpSets, edition: str) -> RcpSet:
    """Return the points for results of round ``edition``."""
    return sets.get(edition, sets.get("", {}))


def read_rcp_sets(folder: Path) -> RcpSets:
    """Read the points in ``folder``, and the points of rounds in its subfolders such as ``v2.1``.

    Raises:
        UserError: exit status 2 if there are none, or if a file is malformed.
    """
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    named = {each: _OF_ROUND.fullmatch(each.name) for each in inside if each.is_dir()}
    sets = {match[1]: read_rcp_set(each) for each, match in named.items() if match}
    if not sets or any(folder.glob(f"{_PREFIX}*.json")):
        sets[""] = read_rcp_set(folder)
    return sets


def read_rcp_set(folder: Path) -> RcpSet:
    """Read every ``rcps_<benchmark>.json`` in ``folder`` (this suite: ``rcps_<slug>.json``).

    Raises:
        UserError: exit status 2 if there is no such file, or if one is malformed.
    """
    paths = sorted(folder.glob(f"{_PREFIX}*.json")) if folder.is_dir() else []
    if not paths:
        raise _error(folder, "a folder of MLCommons' files rcps_<benchmark>.json", "none")
    tasks = {name.replace("/", "-"): name for name in task_names()}
    names = (path.stem.removeprefix(_PREFIX) for path in paths)
    benchmarks = (tasks.get(name, name) for name in names)
    return {name: _read_points(path, name) for name, path in zip(benchmarks, paths, strict=True)}


def _read_points(path: Path, benchmark: str) -> tuple[Reference, ...]:
    least = fewest_runs(mlperf_benchmark(benchmark).drops)
    try:
        records = read_object(path)
        points = tuple(_point_of(name, record, least) for name, record in records.items())
        _require_distinct(points)
    except (OSError, ValueError) as error:
        expected = "reference convergence points as MLCommons writes them"
        raise _error(path, expected, reason(error)) from error
    return points


def _point_of(name: str, record: object, least: int) -> Reference:
    if not isinstance(record, dict):
        raise ValueError(f"{name!r:.80}, which is no object")  # noqa: TRY004 - wrong text, not a wrong argument
    batch = whole(record.get("BS"), 1, COUNT_CAP)
    if batch is None:
        raise ValueError(f"{name!r:.80} with BS = {record.get('BS')!r:.80}")
    stated = [key for key in _AMOUNTS if key in record]
    amounts = record[stated[0]] if len(stated) == 1 else None
    if not (
        isinstance(amounts, list)
        and len(amounts) >= least
        and all(number(each, 0, COUNT_CAP) for each in amounts)
    ):
        either = " or ".join(map(repr, _AMOUNTS))
        raise ValueError(f"{name!r:.80} without {least} or more positive {either}")
    return Reference(batch, tuple(map(float, amounts)))


def _error(path: Path, expected: str, found: str) -> UserError:
    return UserError.of(
        "score.rcp_set", expected, found, "name another --rcp-set", path=visible(str(path))
    )


def _require_distinct(points: tuple[Reference, ...]) -> None:
    sizes = [point.batch_size for point in points]
    if twins := [size for size in dict.fromkeys(sizes) if sizes.count(size) > 1]:
        raise ValueError(f"several points of batch size {twins[0]}")


@dataclass(frozen=True, slots=True)
class RcpVerdict:
    """The outcome of the RCP test; if untestable, ``passed`` is None and ``how`` is the reason."""

    passed: bool | None
    how: str
    factor: float | None = None  #: multiplies the olympic mean time
    mean: float | None = None  #: olympic mean of the result
    reference_mean: float | None = None
    limit: float | None = None  #: lowest mean that passes

    @property
    def reason(self) -> str:
        """Return the reason for the lack of an official score."""
        fast = self.passed is False and self.limit is not None
        return f"converges faster than the reference allows ({self.how})" if fast else self.how

    @property
    def words(self) -> str:
        """Return the outcome in words, such as ``passes with 1.0325``."""
        if self.passed is None:
            return "not tested"
        return f"passes with {self.factor:.4f}" if self.passed else "fails"


def convergence_of(
    result: Result,
    score: ResultScore,
    division: str,
    key: str,
    references: RcpSet | None,
    mode: Mode,
) -> RcpVerdict:
    """Test how fast ``result`` converged; ``key`` counts its progress.

    By the rules, the runs that make the result are tested; runs that are invalid or missed the
    target are the slowest. In mode ``compat``, MLPerf's results are tested like the
    official tool of their round: all logs, by the status that they state.
    """
    if division == "open":
        return RcpVerdict(None, "the open division is not tested", factor=1.0)
    benchmark = score.benchmark
    facts, runs = mlperf_benchmark(benchmark, score.edition), runs_of_result(benchmark)
    points = (references or {}).get(benchmark) or task_references(benchmark)
    if not points and references is None:
        return RcpVerdict(None, "no reference points; name their folder with --rcp-set")
    if not points or runs is None:
        return RcpVerdict(None, f"no reference points for {benchmark!r:.80}")
    tool = official_tool(score.edition) if mode == "compat" else None
    test = RcpTest(runs, facts.drops, facts.grace, tool)
    logs = [sealed.log for sealed in result.runs]
    if tool is not None and not score.plan:
        return _by_tool(points, logs, benchmark, key, score.edition, test)
    window = [(run, log) for run, log in zip(score.runs, logs, strict=True) if run.in_window]
    batch = agreed_batch([log for run, log in window if run.completion == "reached"])
    amounts = [_amount(run, log, score, key) for run, log in window]
    return _compare(points, batch, amounts, test)


def convergence_by_tool(
    logs: Sequence[Log], benchmark: str, edition: str, references: RcpSets
) -> RcpVerdict:
    """Test how fast the runs of ``logs`` converged, like the official tool of round ``edition``."""
    facts = mlperf_benchmark(benchmark, edition)
    points = points_of(references, edition).get(benchmark)
    if not points or facts.runs is None:
        return RcpVerdict(None, f"no reference points for {benchmark!r:.80}")
    test = RcpTest(facts.runs, facts.drops, facts.grace, official_tool(edition))
    return _by_tool(points, logs, benchmark, count_key(logs, benchmark, edition), edition, test)


def _by_tool(
    points: Sequence[Reference],
    logs: Sequence[Log],
    benchmark: str,
    key: str,
    edition: str,
    test: RcpTest,
) -> RcpVerdict:
    tool = test.tool
    assert tool is not None
    batch = agreed_batch(logs[-1:] if tool.batch_size_of == "last" else logs)
    tested = [log for log in logs if _is_tested(log, tool)]
    amounts = [
        amount(log, benchmark, key, edition) if stopped_well(log) else math.inf for log in tested
    ]
    return _compare(points, batch, amounts, test)


def _compare(
    points: Sequence[Reference],
    batch: int | None,
    amounts: Sequence[float | None],
    test: RcpTest,
) -> RcpVerdict:
    known = [each for each in amounts if each is not None]
    if batch is None:
        return RcpVerdict(None, "the runs log no global_batch_size, or differing ones")
    if len(known) < len(amounts):
        return RcpVerdict(None, "a run does not log the epochs or samples it trained")
    return compare_with_references(points, batch, known, test)


def published_factor(result: Result) -> RcpVerdict:
    """Return the factor that MLPerf's tools wrote to ``scaling.json``; 1 if there is none."""
    try:
        factor = scaling_factor(result.package)
    except (OSError, ValueError) as error:
        return RcpVerdict(None, f"scaling.json: {reason(error)}")
    if factor is None:
        return RcpVerdict(None, "published without scaling.json, so with 1", factor=1.0)
    return RcpVerdict(None, "as published in scaling.json", factor=factor)


def _amount(run: RunScore, log: Log, score: ResultScore, key: str) -> float | None:
    if run.completion != "reached":
        return math.inf
    if score.plan:
        return run.samples_to_target
    return amount(log, score.benchmark, key, score.edition)


def _is_tested(log: Log, tool: OfficialTool) -> bool:
    return tool.without_run_stop == "missed" or log.first(keys.RUN_STOP) is not None


def compare_with_references(
    references: Sequence[Reference], batch_size: int, amounts: Sequence[float], test: RcpTest
) -> RcpVerdict:
    """Test the convergence of a result against ``references``.

    ``amounts`` are the epochs or samples to target [run], ``math.inf`` for a run that missed.
    """
    if (fewest := min(len(amounts), test.runs)) < fewest_runs(test.drops):
        return RcpVerdict(
            None, f"{fewest} runs, and the test takes {fewest_runs(test.drops)} or more"
        )
    mean = olympic_mean(amounts, test.drops)
    if math.isinf(mean):
        return RcpVerdict(False, too_many_missed(test.drops))
    points = prune([reference_point(each, test) for each in references], test)
    point, how = _find(points, batch_size, test)
    if point is None:  # the rules ask for a point, and the official tool fails the result
        return RcpVerdict(False if test.tool else None, how, mean=mean)
    lowest = limit(point, test)
    passed = mean >= lowest
    if point.batch_size > batch_size and not passed:
        how = f"no reference point at batch size {batch_size}: supply one, or keep to the smallest"
    # Rules, section 13: a passing result that converges faster than the reference is normalised.
    factor = max(1.0, point.mean / mean) if mean > 0 else None
    return RcpVerdict(passed, how, factor, mean, point.mean, lowest)


def _find(points: Sequence[Point], batch_size: int, test: RcpTest) -> tuple[Point | None, str]:
    below = [point for point in points if point.batch_size <= batch_size]
    above = [point for point in points if point.batch_size >= batch_size]
    if below and below[-1].batch_size == batch_size:
        return below[-1], "reference point at this batch size"
    if below and above:
        return between(below[-1], above[0], batch_size, test), "interpolated"
    if above:
        return above[0], "slower than the reference point of the smallest batch size"
    return None, f"no reference point at or above batch size {batch_size}; one must be supplied"


def reference_point(reference: Reference, test: RcpTest) -> Point:
    """Return the mean and standard deviation of the reference runs as a point.

    By the rules both exclude the fastest and slowest runs, and the standard deviation has the
    divisor n, which reproduces the 0.43 and 0.66 of the appendix "RCP Examples".
    Official tools from v4.1 on take the deviation of all runs, which loosens the limit.
    """
    inner = sorted(reference.amounts)[test.drops : len(reference.amounts) - test.drops]
    of_all = test.tool is not None and test.tool.deviation_of == "all"
    return Point(
        reference.batch_size,
        statistics.fmean(inner),
        statistics.pstdev(reference.amounts if of_all else inner),
        len(inner),
    )


def limit(point: Point, test: RcpTest) -> float:
    """Return the lowest mean that passes.

    One-sided two-sample t test with a common standard deviation at a 5 % significance level.
    """
    t = t_quantile(1 - _ALPHA, test.scored + point.runs - 2)
    spread = t * point.stdev * math.sqrt(1 / test.scored + 1 / point.runs)
    return point.mean - spread - test.grace


def between(low: Point, high: Point, batch_size: int, test: RcpTest) -> Point:
    """Interpolate linearly between two points; as if measured by a complete reference."""
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return Point(
        batch_size,
        low.mean + share * (high.mean - low.mean),
        low.stdev + share * (high.stdev - low.stdev),
        2 * test.runs,
    )


def prune(points: Sequence[Point], test: RcpTest) -> list[Point]:
    """Return the ``points`` from the fastest point on that count, sorted by batch size.

    By the rules, that is the lower convex hull of (batch size, mean), by Andrew's monotone chain.
    Official tools before v2.0 keep all points; later ones make a single pass, which backtracks by
    one point at most and so may keep points above the hull.
    """
    in_order = sorted(points, key=lambda point: point.batch_size)
    if test.tool is None:
        return _envelope(_from_fastest(in_order, _mean), test)
    if test.tool.pruned_by == "nothing":
        return in_order
    figure = _mean if test.tool.pruned_by == "mean" else lambda point: limit(point, test)
    return _single_pass(_from_fastest(in_order, figure), test, figure)


def _mean(point: Point) -> float:
    return point.mean


def _from_fastest(points: Sequence[Point], figure: Callable[[Point], float]) -> list[Point]:
    fastest = min(points, key=figure, default=None)
    return [point for point in points if fastest and point.batch_size >= fastest.batch_size]


def _envelope(points: Sequence[Point], test: RcpTest) -> list[Point]:
    kept: list[Point] = []
    for point in points:
        while len(kept) > 1 and _above(kept[-2], kept[-1], point, test, _mean):
            kept.pop()
        kept.append(point)
    return kept


def _single_pass(
    points: Sequence[Point], test: RcpTest, figure: Callable[[Point], float]
) -> list[Point]:
    # Like the official tool, compare with the new left neighbour, but backtrack no further.
    kept = list(points)
    index = 1
    while index < len(kept) - 1:
        if _above(kept[index - 1], kept[index], kept[index + 1], test, figure):
            del kept[index]
        else:
            index += 1
    return kept


def _above(
    low: Point, middle: Point, high: Point, test: RcpTest, figure: Callable[[Point], float]
) -> bool:
    """Tell whether the ``figure`` of ``middle`` is above that interpolated at its batch size."""
    return figure(middle) > figure(between(low, high, middle.batch_size, test))
