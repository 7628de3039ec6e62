"""``hybridperf compare``: test whether two results differ, by how much, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log.package import find_packages, only_result
from hybridperf.report.judgement import JudgedResult, judged_entries
from hybridperf.report.terminal import compared_text
from hybridperf.score.compare import compare
from hybridperf.score.ranking import MEANS, means_of
from hybridperf.score.statistics import WELCH_TEST
from hybridperf.tasks.mlperf import lineage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from hybridperf.score.compare import Comparison
    from hybridperf.score.official import Official

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf compare runs/local/results/one/resnet-laptop \\
  runs/local/results/two/resnet-laptop"""

_VERDICTS: Final = {
    "faster": "B is faster than A, by Welch's test at 5 %",
    "slower": "B is slower than A, by Welch's test at 5 %",
    "tie": "a tie: A and B do not differ, by Welch's test at 5 %",
    "undecided": "undecided: it takes two runs of each that reached the target, with unequal times",
}


@dataclass(frozen=True, slots=True)
class _Read:
    """A result without its logs, which are large."""

    official: Official
    task: tuple[object, ...]  #: name, version and hash
    data_sha256: object


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf compare``."""
    parser.add_argument("a", type=Path, metavar="A", help="folder of a result")
    parser.add_argument("b", type=Path, metavar="B", help="folder of the result to compare with it")
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print how B differs from A."""
    a, b = _read(options.a, options.b)
    if a.task != b.task:
        raise UserError.of(
            "compare.benchmark",
            visible(f"a result of {_task(a, b)}"),
            visible(f"one of {_task(b, a)}"),
            "compare results of one benchmark, in one version",
            path=str(options.b),
        )
    if a.data_sha256 != b.data_sha256:
        raise UserError.of(
            "compare.data",
            visible(f"a result on data with SHA-256 {a.data_sha256!s:.12}..."),
            visible(f"one on {b.data_sha256!s:.12}..."),
            "compare results on one edition of the data",
            path=str(options.b),
        )
    comparison = compare(a.official, b.official)
    if options.format == "json":
        print_json(comparison.as_json())
    else:
        for line in _lines(comparison):
            print_line(line)
    return ExitCode.OK


def _read(*paths: Path) -> list[_Read]:
    packages = [only_result(find_packages(path), path, "compare.path") for path in paths]
    return [
        _facts(entry, path) for entry, path in zip(judged_entries(packages), paths, strict=True)
    ]


def _facts(entry: JudgedResult, path: Path) -> _Read:
    if not entry.result.runs:
        expected, remedy = "logs called result_<n>.txt", "rename them"
        raise UserError.of(
            "compare.path", expected, "none", remedy, path=str(path), exit_code=ExitCode.ENVIRONMENT
        )
    official, first = entry.official, entry.result.runs[0]
    # Rounds renamed some benchmarks, and gave the name of one to another.
    name = lineage(official.score.benchmark, official.score.edition)
    return _Read(
        official,
        (name, *(first.fact("task", key) for key in ("version", "sha256"))),
        first.fact("data_sha256"),
    )


def _task(one: _Read, other: _Read) -> str:
    """Name the task of ``one``, and of version and hash the first that differs from ``other``."""
    name, *rest = one.task
    for word, mine, its in zip(("version", "SHA-256"), rest, other.task[1:], strict=True):
        if name == other.task[0] and mine != its:
            return f"{name!r:.80} of {word} {mine!s:.80}"
    return f"{name!r:.80}"


def _lines(comparison: Comparison) -> Iterator[str]:
    decision = comparison.decision
    yield _side("A", comparison.a)
    yield _side("B", comparison.b)
    if decision.difference_s is not None and decision.ratio is not None:
        interval = decision.interval
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
        means = "means" if comparison.a.own else "olympic means"
        yield f"  {_percent(efficiency.by_time_to_train)} by time to train ({means})"
    yield from comparison.notes
    yield from ("", compared_text(comparison.a, comparison.b, terminal_width()))


def _side(name: str, side: Official) -> str:
    score, means, minutes = side.score, means_of(side), side.olympic_minutes
    what = visible(f"{score.org} {score.system} {score.benchmark}")
    runs = f"{len(score.compared)} runs"
    if means is None:
        return f"{name}: {what}: {runs}, none of which reached the target"
    bound = f", a lower bound: {score.missed} missed the target" if score.missed else ""
    official = "" if score.own or minutes is None else f"; olympic mean {minutes * 60:.3f} s"
    return f"{name}: {what}: mean {means.time_s:.3f} s of {runs}{bound}{official}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
