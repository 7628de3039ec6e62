"""Tables of the measurements over slow links: seconds, bytes, comparisons, time to target."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from hybridperf.log.package import find_results, read_result
from hybridperf.score.score import score_result
from hybridperf.tasks.registry import find_task
from studies.slow_links.blocks import COMPARISONS, METHODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from studies.slow_links.blocks import Comparison, Record

CLEARLY: Final = 1.05  #: smallest ratio of clearly different times

__all__ = [
    "CLEARLY",
    "Crossover",
    "crossovers",
    "markdown",
    "measured_ratios",
    "rate_name",
    "samples_to_target",
    "tables",
    "three_digits",
]


def tables(records: Sequence[Record], evidence: Path | None, most_mbit_per_s: float) -> str:
    """Return the tables in Markdown; the last table only with the folder ``evidence`` of results.

    ``most_mbit_per_s`` is the rate of the unlimited link.
    """
    parts = [
        "Milliseconds of a step: median (lowest to highest); share of the step with a busy link:",
        _steps(records),
        "Bytes sent by an end in a step:",
        _bytes(records),
        "Ratio of step times (median), and crossovers (range of close times):",
        _comparisons(records, most_mbit_per_s),
    ]
    if evidence is not None:
        parts += [
            "Seconds of training to the target, without evaluations:",
            _times_to_target(records, samples_to_target(evidence)),
        ]
    return "\n\n".join(parts)


class Crossover(NamedTuple):
    """A rate at which two methods take the same time, and the range around it where they are close.

    In the range their times differ by less than `CLEARLY`; it is within the measured rates.
    """

    mbit_per_s: float
    min_mbit_per_s: float
    max_mbit_per_s: float

    def __str__(self) -> str:
        rate, least, most = map(three_digits, self)
        return f"{rate} ({least} to {most})"

    def factor(self, other: Crossover) -> float:
        """Return the ratio of the higher to the lower rate."""
        return max(self.mbit_per_s / other.mbit_per_s, other.mbit_per_s / self.mbit_per_s)

    def gap(self, other: Crossover) -> float:
        """Return the start of the higher range over the end of the lower one; 1 if they overlap."""
        return max(
            1.0,
            self.min_mbit_per_s / other.max_mbit_per_s,
            other.min_mbit_per_s / self.max_mbit_per_s,
        )


def crossovers(
    ratios: Mapping[float, Sequence[float]], most_mbit_per_s: float, clearly: float = CLEARLY
) -> list[Crossover]:
    """Return the crossovers, where the median ratio of times by rate crosses 1.

    Interpolated between the given rates, on log scales; rate 0 is the unlimited link, of
    ``most_mbit_per_s``. A method is faster at a rate if the median ratio differs from 1 by a factor
    of ``clearly`` and all ratios agree. A range of equal times between rates with the same faster
    method is no crossover.
    """
    crossed: list[int] = []  # numbers of the rates after the crossings
    side, last = 0, 0  # sign of the last faster method, and the last crossing since
    logs = sorted(
        (math.log(rate or most_mbit_per_s), sorted(map(math.log, each)))
        for rate, each in ratios.items()
    )
    medians = [(rate, statistics.median(each)) for rate, each in logs]
    for number, (_, each) in enumerate(logs):
        ratio = medians[number][1]
        before = medians[number - 1][1] if number else ratio
        if before * ratio <= 0 and before != ratio:
            last = number
        if abs(ratio) > math.log(clearly) and each[0] * each[-1] > 0:
            own = 1 if ratio > 0 else -1
            if side and own != side:
                crossed.append(last)
            side = own
    return [_crossover(medians, number) for number in crossed]


def _crossover(medians: Sequence[tuple[float, float]], after: int) -> Crossover:
    """Return the crossover between ``medians[after]`` and the point before it.

    Points are logarithms of a rate and of a ratio of times.
    """
    equal = _where(medians[after - 1], medians[after], 0.0)
    ends = [
        _first_beyond([(equal, 0.0), *points])
        for points in (medians[after - 1 :: -1], medians[after:])
    ]
    return Crossover(math.exp(equal), *map(math.exp, ends))


def _first_beyond(points: Sequence[tuple[float, float]]) -> float:
    """Return the log of the rate along ``points`` where the methods stop being close."""
    limit = math.log(CLEARLY)
    for start, stop in itertools.pairwise(points):
        if abs(stop[1]) >= limit:
            return _where(start, stop, math.copysign(limit, stop[1]))
    return points[-1][0]


def _where(start: tuple[float, float], stop: tuple[float, float], ratio: float) -> float:
    """Interpolate linearly: return the log of the rate between two points at the log ``ratio``."""
    return start[0] + (stop[0] - start[0]) * (ratio - start[1]) / (stop[1] - start[1])


def measured_ratios(
    records: Iterable[Record], task: str, comparison: Comparison
) -> dict[float, list[float]]:
    """Return the ratios of two methods' times of ``task`` by rate; 0: not limited.

    One per repetition of both methods.
    """
    groups = _group(records)
    ratios = {rate: _ratios(groups, task, rate, comparison) for rate in _rates(groups)}
    return {rate: each for rate, each in ratios.items() if each}


def samples_to_target(root: Path) -> dict[tuple[str, str], tuple[float, int, int]]:
    """Return the mean samples to the target by task and key of ``methods.toml``.

    With the number of runs that reached the target, which the mean is over, and of all runs.
    """
    keys = {method.converges_as for method in METHODS}
    found = {}
    for package in find_results(root):
        score = score_result(read_result(package))
        if not (key := next((key for key in keys if score.system.endswith(f"-{key}")), None)):
            continue
        reached = [run.samples_to_target for run in score.completed if run.completion == "reached"]
        counts = [count for count in reached if count is not None]
        if counts:
            mean = statistics.fmean(counts)
            found[score.benchmark, key] = (mean, len(counts), len(score.completed))
    return found


def _steps(records: Iterable[Record]) -> str:
    groups = _group(records)
    rates = _rates(groups)
    rows = [("task", "method", *map(rate_name, rates))]
    for task in _tasks(groups):
        for method in METHODS:
            cells = []
            for rate in rates:
                if not (some := groups.get((task, rate, method.key))):
                    cells.append("")
                    continue
                times_ms = [record.step_s * 1e3 for record in some]
                cell = f"{three_digits(statistics.median(times_ms))} ({_span(times_ms)})"
                if rate:
                    busy = [max(r.sent_bytes) / (rate * 1e6 / 8) / r.step_s for r in some]
                    cell += f"; {statistics.median(busy):.0%}"
                cells.append(cell)
            rows.append((task, f"{method.name} (`{method.plan}`)", *cells))
    return markdown(rows)


def _bytes(records: Iterable[Record]) -> str:
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        groups[record.task, record.method].append(record)
    rows = [("task", "method", "counted", "on the interface, each end", "over counted")]
    for task in dict.fromkeys(task for task, _ in groups):
        for method in METHODS:
            if not (some := groups.get((task, method.key))):
                continue
            counted = statistics.median(record.counted_bytes for record in some)
            sent = [statistics.median(r.sent_bytes[end] for r in some) for end in range(2)]
            rows.append(
                (
                    task,
                    method.name,
                    f"{counted:,.0f}",
                    " and ".join(f"{each:,.0f}" for each in sent),
                    f"{max(sent) / counted:.3f}",
                )
            )
    return markdown(rows)


def _comparisons(records: Sequence[Record], most_mbit_per_s: float) -> str:
    groups = _group(records)
    rates = _rates(groups)
    rows = [("task", "comparison", *map(rate_name, rates), "crossover, Mbit/s")]
    for task in _tasks(groups):
        for comparison in COMPARISONS:
            ratios = measured_ratios(records, task, comparison)
            equal = ", ".join(map(str, crossovers(ratios, most_mbit_per_s)))
            medians = {rate: statistics.median(each) for rate, each in ratios.items()}
            cells = [f"{medians[rate]:.2f}" if rate in medians else "" for rate in rates]
            rows.append((task, comparison.name, *cells, equal or "none"))
    return markdown(rows)


def _times_to_target(
    records: Iterable[Record], samples: Mapping[tuple[str, str], tuple[float, int, int]]
) -> str:
    groups = _group(records)
    rates = _rates(groups)
    rows = [("task", "method", "samples (runs that reached the target)", *map(rate_name, rates))]
    for task in _tasks(groups):
        batch = find_task(task).training.global_batch_size
        for method in METHODS:
            if (task, method.converges_as) not in samples:
                rows.append((task, method.name, "unknown", *("" for _ in rates)))
                continue
            mean, reached, runs = samples[task, method.converges_as]
            cells = []
            for rate in rates:
                some = groups.get((task, rate, method.key), [])
                times_s = [record.step_s / batch * mean for record in some]
                cells.append(three_digits(statistics.median(times_s)) if times_s else "")
            rows.append((task, method.name, f"{mean:,.0f} ({reached} of {runs})", *cells))
    return markdown(rows)


_Groups = dict[tuple[str, float, str], "list[Record]"]


def _group(records: Iterable[Record]) -> _Groups:
    """Return the records by task, rate and method, in the order of repetitions."""
    groups: _Groups = defaultdict(list)
    for record in sorted(records, key=lambda each: each.repetition):
        groups[record.task, record.rate_mbit_per_s, record.method].append(record)
    return dict(groups)


def _ratios(groups: _Groups, task: str, rate: float, comparison: Comparison) -> list[float]:
    """Return the ratio of each repetition of both methods."""
    first, second = (
        {record.repetition: record.step_s for record in groups.get((task, rate, key), [])}
        for key in (comparison.first, comparison.second)
    )
    return [first[turn] / second[turn] for turn in sorted(first.keys() & second.keys())]


def _tasks(groups: _Groups) -> list[str]:
    return list(dict.fromkeys(task for task, _, _ in groups))


def _rates(groups: _Groups) -> list[float]:
    """Return the rates, from not limited to the slowest."""
    return sorted({rate for _, rate, _ in groups}, key=lambda rate: -(rate or math.inf))


def rate_name(rate: float) -> str:
    """Return the column head of a rate in Mbit/s; 0: not limited."""
    return f"{rate:,g} Mbit/s" if rate else "not limited"


def _span(values: Sequence[float]) -> str:
    return f"{three_digits(min(values))} to {three_digits(max(values))}"


def three_digits(value: float) -> str:
    """Format ``value`` with three significant digits."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{digits}f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose head is the first of ``rows``."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
