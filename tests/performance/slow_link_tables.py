"""The tables of what was measured over slow links: seconds, bytes, comparisons, time to target."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from hybridperf.log.package import find_results, read_result
from hybridperf.score.score import score_result
from hybridperf.tasks.registry import find_task
from tests.performance.slow_link_methods import COMPARISONS, METHODS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.performance.slow_link_methods import Comparison, Record

CLEARLY: Final = 1.05  #: times whose ratio is less are alike

__all__ = [
    "CLEARLY",
    "crossovers",
    "markdown",
    "measured_ratios",
    "rate_name",
    "samples_to_target",
    "tables",
    "three_digits",
]


def tables(records: Sequence[Record], evidence: Path | None, most_mbit_per_s: float) -> str:
    """Return the tables in Markdown; the last one only with the folder ``evidence`` of results.

    ``most_mbit_per_s`` is what the link carries where nothing limits it.
    """
    parts = [
        "Milliseconds of a step: median (lowest to highest); share of it that the link is busy:",
        _steps(records),
        "Bytes that an end sends in a step:",
        _bytes(records),
        "Time of one over time of another (median), and the rate where both are equal:",
        _comparisons(records, most_mbit_per_s),
    ]
    if evidence is not None:
        parts += [
            "Seconds of training to the target, without evaluations:",
            _times_to_target(records, samples_to_target(evidence)),
        ]
    return "\n\n".join(parts)


def crossovers(
    ratios: Mapping[float, Sequence[float]], most_mbit_per_s: float, clearly: float = CLEARLY
) -> list[float]:
    """Return the rates where the median of the ratios of times, given by rate, is 1.

    They are interpolated between rates on log scales; ``most_mbit_per_s`` is that which is not
    limited, given as 0. One method is faster at a rate where the median of the ratios differs from
    1 by a factor of ``clearly``, and all of them say so. Where none is until the same one is again,
    both are alike, and no rate is returned.
    """
    found: list[float] = []
    side, crossed = 0, 0.0  # which was faster when one was, and the last crossing since
    logs = [
        (math.log(rate or most_mbit_per_s), sorted(map(math.log, each)))
        for rate, each in ratios.items()
    ]
    before: tuple[float, float] | None = None
    for rate, each in sorted(logs):
        ratio = statistics.median(each)
        if before is not None and before[1] * ratio < 0:
            low, last = before
            crossed = math.exp(low + (rate - low) * last / (last - ratio))
        before = rate, ratio
        if abs(ratio) > math.log(clearly) and each[0] * each[-1] > 0:
            own = 1 if ratio > 0 else -1
            if side and own != side:
                found.append(crossed)
            side = own
    return found


def measured_ratios(
    records: Iterable[Record], task: str, comparison: Comparison
) -> dict[float, list[float]]:
    """Return the ratios of two methods' times of ``task`` by rate, 0 where nothing limits it.

    There is one of each repetition that both methods have.
    """
    groups = _grouped(records)
    ratios = {rate: _ratios(groups, task, rate, comparison) for rate in _rates(groups)}
    return {rate: each for rate, each in ratios.items() if each}


def samples_to_target(root: Path) -> dict[tuple[str, str], tuple[float, int, int]]:
    """Return the mean samples to the target by task and key of ``methods.toml``.

    It is that of the runs that reached it, whose number follows, and then that of all runs.
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
    groups = _grouped(records)
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
    groups = _grouped(records)
    rates = _rates(groups)
    rows = [("task", "comparison", *map(rate_name, rates), "equal at, Mbit/s")]
    for task in _tasks(groups):
        for comparison in COMPARISONS:
            ratios = measured_ratios(records, task, comparison)
            equal = ", ".join(three_digits(rate) for rate in crossovers(ratios, most_mbit_per_s))
            medians = {rate: statistics.median(each) for rate, each in ratios.items()}
            cells = [f"{medians[rate]:.2f}" if rate in medians else "" for rate in rates]
            rows.append((task, comparison.name, *cells, equal or "none of these"))
    return markdown(rows)


def _times_to_target(
    records: Iterable[Record], samples: Mapping[tuple[str, str], tuple[float, int, int]]
) -> str:
    groups = _grouped(records)
    rates = _rates(groups)
    rows = [("task", "method", "samples (runs that reached it)", *map(rate_name, rates))]
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


def _grouped(records: Iterable[Record]) -> _Groups:
    """Return the records by task, rate and method, in the order of repetitions."""
    groups: _Groups = defaultdict(list)
    for record in sorted(records, key=lambda each: each.repetition):
        groups[record.task, record.rate_mbit_per_s, record.method].append(record)
    return dict(groups)


def _ratios(groups: _Groups, task: str, rate: float, comparison: Comparison) -> list[float]:
    """Return the ratio of each repetition that both methods have."""
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
    """Return the head of a column for a rate in Mbit/s; 0: not limited."""
    return f"{rate:,g} Mbit/s" if rate else "not limited"


def _span(values: Sequence[float]) -> str:
    return f"{three_digits(min(values))} to {three_digits(max(values))}"


def three_digits(value: float) -> str:
    """Return ``value`` with three digits that count."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{digits}f}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose head is the first of ``rows``."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
