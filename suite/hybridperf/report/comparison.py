"""Write the comparison of two results as text, or say in one sentence why there is none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from hybridperf.findings import Finding, visible
from hybridperf.report.terminal import compared_text
from hybridperf.score.ranking import MEANS
from hybridperf.score.statistics import WELCH_TEST
from hybridperf.system.catalog import device_count
from hybridperf.tasks.mlperf import lineage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.compare import Comparison
    from hybridperf.score.official import Official

__all__ = ["comparison_text", "incomparable"]

_VERDICTS: Final = {
    "faster": "B is faster than A, by Welch's test at 5 %",
    "slower": "B is slower than A, by Welch's test at 5 %",
    "tie": "a tie: A and B do not differ, by Welch's test at 5 %",
    "undecided": "undecided: it takes two runs of each that reached the target, with unequal times",
}
_MOST_CHARACTERS: Final = 200  #: of a field that differs
_NONE: Final = "none"


def incomparable(a: JudgedResult, b: JudgedResult, path: str = "") -> Finding | None:
    """Return why result ``b``, at ``path``, cannot be compared with ``a``; None if it can."""
    tasks, data = (_task(a), _task(b)), (_fact(a, "data_sha256"), _fact(b, "data_sha256"))
    if tasks[0] != tasks[1]:
        return Finding(
            "compare.benchmark",
            visible(f"a result of {_task_words(*tasks)}"),
            visible(f"one of {_task_words(*reversed(tasks))}"),
            "compare results of one benchmark, in one version",
            path=path,
        )
    if data[0] != data[1]:
        return Finding(
            "compare.data",
            visible(f"a result on data with SHA-256 {data[0]!s:.12}..."),
            visible(f"one on {data[1]!s:.12}..."),
            "compare results on one edition of the data",
            path=path,
        )
    return None


def comparison_text(a: JudgedResult, b: JudgedResult, comparison: Comparison, width: int) -> str:
    """Return how result ``b`` differs from ``a``, in lines for ``width`` characters."""
    table = compared_text(a.official, b.official, width)
    return "\n".join([*_lines(comparison), *_differences(a, b), "", table])


def _fact(entry: JudgedResult, *keys: str) -> object:
    return entry.result.runs[0].fact(*keys) if entry.result.runs else None


def _task(entry: JudgedResult) -> tuple[object, ...]:
    """Return name, version and hash of the task."""
    # Rounds renamed some benchmarks, and gave the name of one to another.
    name = lineage(entry.score.benchmark, entry.score.edition)
    return name, *(_fact(entry, "task", key) for key in ("version", "sha256"))


def _task_words(one: tuple[object, ...], other: tuple[object, ...]) -> str:
    """Name the task ``one``, and of version and hash the first that differs from ``other``."""
    name, *rest = one
    for word, mine, its in zip(("version", "SHA-256"), rest, other[1:], strict=True):
        if name == other[0] and mine != its:
            return f"{name!r:.80} of {word} {mine!s:.80}"
    return f"{name!r:.80}"


def _differences(a: JudgedResult, b: JudgedResult) -> Iterator[str]:
    """Yield the fields of the manifests and of the systems in which the results differ."""
    for (name, one), (_, other) in zip(_fields(a), _fields(b), strict=True):
        if one != other:
            yield visible(f"differs: {name}: {one or _NONE} / {other or _NONE}")


def _fields(entry: JudgedResult) -> Iterator[tuple[str, str]]:
    score, official = entry.score, entry.official
    overrides, commit = _fact(entry, "overrides"), _fact(entry, "code", "commit")
    count = device_count(entry.result.system)
    fields = {
        "plan": score.plan,
        "overrides": json.dumps(overrides, sort_keys=True) if overrides else "",
        "division": official.division,
        "organisation": score.org,
        "accelerator": official.accelerator,
        "devices": "" if count is None else str(count),
        "framework": (entry.result.system or {}).get("framework"),
        "trainer": score.trainer,
        "commit": commit[:12] if isinstance(commit, str) else "",
    }
    for name, value in fields.items():
        yield name, value[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def _lines(comparison: Comparison) -> Iterator[str]:
    decision = comparison.decision
    yield _side("A", comparison.a)
    yield _side("B", comparison.b)
    if decision.difference_s is not None and decision.ratio is not None:
        interval = comparison.interval
        span = f", 95 % interval {interval.low:.4f} to {interval.high:.4f}" if interval else ""
        yield f"B - A: {decision.difference_s:+.3f} s; B / A: {decision.ratio:.4f}{span}"
    if test := decision.test:
        degrees = f"{test.degrees:.1f} degrees of freedom"
        yield f"{WELCH_TEST}: t = {test.t:.3f}, {degrees}, p = {test.p_value:.3g}"
    yield _VERDICTS[decision.verdict]
    if why := decision.why:
        yield (
            f"why: samples to converge x {why.samples_ratio:.4f}, seconds per sample x "
            f"{why.seconds_per_sample_ratio:.4f}"
        )
        if why.accelerator_seconds_per_sample_ratio and why.accelerators_ratio != 1:
            yield (
                f"  of which accelerator-seconds per sample x "
                f"{why.accelerator_seconds_per_sample_ratio:.4f}, on x "
                f"{why.accelerators_ratio:.4f} accelerators"
            )
    yield f"means: {MEANS}"
    idle = [each.idle_share for each in (comparison.a, comparison.b)]
    if idle[0] is not None and idle[1] is not None:
        yield f"idle: {idle[0]:.1%} of device time in A, {idle[1]:.1%} in B"
    if efficiency := comparison.efficiency:
        few, many = efficiency.accelerators
        yield f"scaling efficiency from {few} to {many} accelerators:"
        yield (
            f"  {_percent(efficiency.by_throughput)} by end-to-end throughput "
            "(samples/s, mean over the runs that count)"
        )
        yield f"  {_percent(efficiency.by_time_to_train)} by time to train (olympic means)"
    yield from comparison.notes


def _side(name: str, side: Official) -> str:
    score, minutes = side.score, side.olympic_minutes
    time = "no olympic mean" if minutes is None else f"olympic mean {minutes * 60:.3f} s"
    runs = f"{len(score.completed)} runs"
    return f"{name}: {visible(f'{score.org} {score.system} {score.benchmark}')}: {time}, {runs}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
