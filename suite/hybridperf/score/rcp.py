"""Load reference convergence points, and test convergence against them.

Source: MLPerf Training rules, section 13.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.score.olympic import fewest_runs, olympic_mean, too_many_missed
from hybridperf.score.welch import t_quantile
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.tasks.registry import find_task, task_names
from hybridperf.untrusted import COUNT_CAP, number, read_object, reason, whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "Mode",
    "Point",
    "RcpSet",
    "Reference",
    "Verdict",
    "judge",
    "limit",
    "prune",
    "read_rcp_set",
    "reference_point",
    "task_references",
]

#: ``rules``: computed by the MLPerf Training rules; ``compat``: computed like the official tool
#: 4.1.59; ``published``: taken from the files that a round published with its logs
Mode = Literal["rules", "compat", "published"]
_ALPHA: Final = 0.05


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


@dataclass(frozen=True, slots=True)
class Verdict:
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


def reference_point(reference: Reference, mode: Mode, drops: int) -> Point:
    """Return the mean and standard deviation of the reference runs as a point.

    ``rules``: both exclude the ``drops`` fastest and slowest runs, and the standard deviation is
    that of a population (divisor n), which reproduces the 0.43 and 0.66 of the appendix "RCP
    Examples". ``compat``: the standard deviation is that of all runs, which loosens the limit.
    """
    inner = sorted(reference.amounts)[drops : len(reference.amounts) - drops]
    spread = inner if mode != "compat" else reference.amounts
    return Point(
        reference.batch_size,
        statistics.fmean(inner),
        statistics.pstdev(spread),
        len(inner),
    )


def limit(point: Point, scored: int) -> float:
    """Return the lowest mean over ``scored`` runs that passes.

    One-sided two-sample t test with a common standard deviation at a 5 % significance level.
    Source: MLPerf Training rules, section 13.
    """
    t = t_quantile(1 - _ALPHA, scored + point.runs - 2)
    return point.mean - t * point.stdev * math.sqrt(1 / scored + 1 / point.runs)


def judge(
    references: Sequence[Reference],
    batch_size: int,
    amounts: Sequence[float],
    submission_runs: int,
    drops: int,
    mode: Mode,
) -> Verdict:
    """Test the convergence of a result of ``submission_runs`` runs against ``references``.

    ``amounts`` are the epochs or samples to target [run], ``math.inf`` for a run that missed;
    ``drops`` is the number of runs that the olympic mean leaves out at either end.
    """
    if (fewest := min(len(amounts), submission_runs)) < fewest_runs(drops):
        return Verdict(None, f"{fewest} runs, and the test takes {fewest_runs(drops)} or more")
    mean = olympic_mean(amounts, drops)
    if math.isinf(mean):
        return Verdict(False, too_many_missed(drops))
    points = prune([reference_point(each, mode, drops) for each in references], mode)
    point, how = _find(points, batch_size, submission_runs)
    if point is None:
        return Verdict(None, how, mean=mean)
    # The official tool takes two runs from a submission, also where the mean leaves out more.
    lowest = limit(point, submission_runs - 2 * (1 if mode == "compat" else drops))
    passed = mean >= lowest
    if point.batch_size > batch_size and not passed:
        how = f"no reference point at batch size {batch_size}: supply one, or keep to the smallest"
    # Rules, section 13: a passing result that converges faster than the reference is normalised.
    factor = max(1.0, point.mean / mean) if mean > 0 else None
    return Verdict(passed, how, factor, mean, point.mean, lowest)


def _find(points: Sequence[Point], batch_size: int, runs: int) -> tuple[Point | None, str]:
    below = [point for point in points if point.batch_size <= batch_size]
    above = [point for point in points if point.batch_size >= batch_size]
    if below and below[-1].batch_size == batch_size:
        return below[-1], "reference point at this batch size"
    if below and above:
        return _between(below[-1], above[0], batch_size, 2 * runs), "interpolated"
    if above:
        return above[0], "slower than the reference point of the smallest batch size"
    return None, f"no reference point at or above batch size {batch_size}; one must be supplied"


def _between(low: Point, high: Point, batch_size: int, runs: int) -> Point:
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return Point(
        batch_size,
        low.mean + share * (high.mean - low.mean),
        low.stdev + share * (high.stdev - low.stdev),
        runs,
    )


def prune(points: Sequence[Point], mode: Mode) -> list[Point]:
    """Prune ``points`` to the lower convex hull from the fastest one on, sorted by batch size.

    ``rules``: the hull of (batch size, mean) by Andrew's monotone chain (MLPerf Training rules,
    section 13). ``compat``: the single pass of the official tool (4.1.59), which backtracks by one
    point at most and so may keep points above the hull.
    """
    in_order = sorted(points, key=lambda point: point.batch_size)
    fastest = min(in_order, key=lambda point: point.mean, default=None)
    kept = [point for point in in_order if fastest and point.batch_size >= fastest.batch_size]
    return _single_pass(kept) if mode == "compat" else _envelope(kept)


def _envelope(points: Sequence[Point]) -> list[Point]:
    kept: list[Point] = []
    for point in points:
        while len(kept) > 1 and _above(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    return kept


def _single_pass(points: Sequence[Point]) -> list[Point]:
    # Like the official tool, compare with the new left neighbour, but backtrack no further.
    kept = list(points)
    index = 1
    while index < len(kept) - 1:
        if _above(kept[index - 1], kept[index], kept[index + 1]):
            del kept[index]
        else:
            index += 1
    return kept


def _above(low: Point, middle: Point, high: Point) -> bool:
    """Tell whether ``middle`` lies above the line segment from ``low`` to ``high``."""
    share = (middle.batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    return middle.mean > low.mean + share * (high.mean - low.mean)


_PREFIX: Final = "rcps_"

RcpSet = dict[str, tuple[Reference, ...]]  #: by benchmark


def task_references(benchmark: str) -> tuple[Reference, ...]:
    """Return the reference convergence points of a task of this suite, in samples."""
    if benchmark not in task_names() or (own := find_task(benchmark).reference) is None:
        return ()
    return (Reference(own.global_batch_size, tuple(map(float, own.samples_to_target))),)


def read_rcp_set(folder: Path) -> RcpSet:
    """Read every ``rcps_<benchmark>.json`` in ``folder`` (this suite: ``rcps_<slug>.json``).

    Raises:
        UserError: exit status 2 if there is no such file, or if one is malformed.
    """
    paths = sorted(folder.glob(f"{_PREFIX}*.json")) if folder.is_dir() else []
    if not paths:
        _refuse(folder, "a folder of MLCommons' files rcps_<benchmark>.json", "none")
    tasks = {name.replace("/", "-"): name for name in task_names()}
    names = (path.stem.removeprefix(_PREFIX) for path in paths)
    benchmarks = (tasks.get(name, name) for name in names)
    return {name: _read_points(path, name) for name, path in zip(benchmarks, paths, strict=True)}


def _read_points(path: Path, benchmark: str) -> tuple[Reference, ...]:
    least = fewest_runs(mlperf_benchmark(benchmark).drops)
    try:
        records = read_object(path)
        return tuple(_point_of(name, record, least) for name, record in records.items())
    except (OSError, ValueError) as error:
        _refuse(path, "reference convergence points as MLCommons writes them", reason(error))


def _point_of(name: str, record: object, least: int) -> Reference:
    if not isinstance(record, dict):
        raise ValueError(f"{name!r:.80}, which is no object")  # noqa: TRY004 - wrong text, not a wrong argument
    batch, amounts = whole(record.get("BS"), 1, COUNT_CAP), record.get("Epochs to converge")
    if batch is None:
        raise ValueError(f"{name!r:.80} with BS = {record.get('BS')!r:.80}")
    if not (
        isinstance(amounts, list)
        and len(amounts) >= least
        and all(number(each, 0) for each in amounts)
    ):
        raise ValueError(f"{name!r:.80} without {least} or more positive 'Epochs to converge'")
    return Reference(batch, tuple(map(float, amounts)))


def _refuse(path: Path, expected: str, found: str) -> NoReturn:
    finding = Finding(
        "score.rcp_set", expected, found, "name another --rcp-set", visible(str(path))
    )
    raise UserError(finding, ExitCode.USAGE)
