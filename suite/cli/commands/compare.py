"""``hybridperf compare``: whether two results differ, by how much, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.cli.printing import print_json, print_line
from suite.findings import Finding, visible
from suite.logs.rounds import find_packages, read_package
from suite.refusal import ExitCode, Refusal
from suite.scores.compare import MEANS, compare
from suite.scores.official import official_score
from suite.scores.score import score_result
from suite.scores.welch import TEST

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from suite.scores.compare import Comparison
    from suite.scores.official import Official

__all__ = ["execute"]

_VERDICTS: Final = {
    "faster": "B is faster than A, by Welch's test at 5 %",
    "slower": "B is slower than A, by Welch's test at 5 %",
    "tie": "a tie: A and B do not differ, by Welch's test at 5 %",
    "undecided": "undecided: it takes two runs of each that reached the target, with unequal times",
}


@dataclass(frozen=True, slots=True)
class _Read:
    """What is kept of a result: not its logs, which are large."""

    official: Official
    task: tuple[object, ...]  #: name, version and hash
    data_sha256: object


def execute(options: argparse.Namespace) -> ExitCode:
    """Print how B differs from A."""
    a, b = (_read(path) for path in (options.a, options.b))
    if a.task != b.task:
        finding = Finding(
            "compare.benchmark",
            f"a result of {a.task[0]!r}, in the same version",
            f"one of {b.task[0]!r}",
            "compare results of one benchmark",
            path=str(options.b),
        )
        raise Refusal(finding, ExitCode.USAGE)
    if a.data_sha256 != b.data_sha256:
        finding = Finding(
            "compare.data",
            visible(f"a result on data with SHA-256 {a.data_sha256!s:.12}..."),
            visible(f"one on {b.data_sha256!s:.12}..."),
            "compare results on one edition of the data",
            path=str(options.b),
        )
        raise Refusal(finding, ExitCode.USAGE)
    comparison = compare(a.official, b.official)
    if options.json:
        print_json(comparison.as_json())
    else:
        for line in _lines(comparison):
            print_line(line)
    return ExitCode.OK


def _read(path: Path) -> _Read:
    packages = find_packages(path)
    if len(packages) != 1:
        finding = Finding(
            "compare.path",
            "one result, in <org>/results/<system>/<benchmark>",
            f"{len(packages)} results" if packages else "none",
            "name the folder of one result",
            path=str(path),
        )
        raise Refusal(finding, ExitCode.USAGE if packages else ExitCode.ENVIRONMENT)
    result = read_package(packages[0])
    if not result.runs:
        expected, remedy = "logs called result_<n>.txt", "rename them"
        finding = Finding("compare.path", expected, "none", remedy, path=str(path))
        raise Refusal(finding, ExitCode.ENVIRONMENT)
    score, first = score_result(result), result.runs[0]
    return _Read(
        official_score(result, score, None, "published"),
        (score.benchmark, *(first.fact("task", key) for key in ("version", "sha256"))),
        first.fact("data_sha256"),
    )


def _lines(comparison: Comparison) -> Iterator[str]:
    yield _side("A", comparison.a)
    yield _side("B", comparison.b)
    if comparison.difference_s is not None and comparison.ratio is not None:
        interval = comparison.interval
        span = f", 95 % interval {interval.low:.4f} to {interval.high:.4f}" if interval else ""
        yield f"B - A: {comparison.difference_s:+.3f} s; B / A: {comparison.ratio:.4f}{span}"
    if test := comparison.test:
        degrees = f"{test.degrees:.1f} degrees of freedom"
        yield f"{TEST}: t = {test.t:.3f}, {degrees}, p = {test.p_value:.3g}"
    if permutation := comparison.permutation:
        yield f"{permutation.method}: p = {permutation.p_value:.3g}"
    yield _VERDICTS[comparison.verdict]
    if why := comparison.why:
        yield (
            f"why: samples to converge x {why.samples_ratio:.4f}, seconds per sample x "
            f"{why.seconds_per_sample_ratio:.4f}"
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
