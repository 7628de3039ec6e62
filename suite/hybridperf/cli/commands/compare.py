"""``hybridperf compare``: test whether two results differ, by how much, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode
from hybridperf.findings import visible
from hybridperf.log.package import find_packages, only_result
from hybridperf.regression import Regression, parse_percentage, require_comparable
from hybridperf.report.judgement import judged_entries
from hybridperf.report.terminal import compared_text
from hybridperf.score.compare import compare
from hybridperf.score.ranking import MEANS
from hybridperf.score.statistics import WELCH_TEST
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from hybridperf.report.judgement import JudgedResult
    from hybridperf.score.compare import Comparison
    from hybridperf.score.official import Official

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf compare runs/local/results/one/resnet-laptop \\
  runs/local/results/two/resnet-laptop
hybridperf compare --fail-if-slower 3% base/local/results/one/resnet-laptop \\
  runs/local/results/one/resnet-laptop"""

_VERDICTS: Final = {
    "faster": "B is faster than A, by Welch's test at 5 %",
    "slower": "B is slower than A, by Welch's test at 5 %",
    "tie": "a tie: A and B do not differ, by Welch's test at 5 %",
    "undecided": "undecided: it takes two runs of each that reached the target, with unequal times",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf compare``."""
    parser.add_argument("a", type=Path, metavar="A", help="folder of a result")
    parser.add_argument("b", type=Path, metavar="B", help="folder of the result to compare with it")
    parser.add_argument(
        "--fail-if-slower",
        type=parse_percentage,
        metavar="PERCENT",
        help="end with exit status 6 if B is slower than A by more than this, such as 3%%, and "
        "Welch's test finds a difference",
    )
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print how B differs from A; the exit status says whether it is slower than a limit."""
    paths = options.a, options.b
    packages = [only_result(find_packages(path), path, "compare.path") for path in paths]
    a, b = judged_entries(packages)
    require_comparable(a, b, str(options.b))
    comparison, regression = compare(a.official, b.official), None
    if options.fail_if_slower is not None:
        regression = Regression(comparison, options.fail_if_slower)
    if options.format == "json":
        added = {"regression": regression.as_json()} if regression else {}
        print_json(comparison.as_json() | added)
    else:
        for line in _lines(comparison):
            print_line(line)
        if regression:
            print_line(f"\nB, with the baseline A: {regression.sentence}")
    return _status(regression, a, b) if regression else ExitCode.OK


def _status(regression: Regression, a: JudgedResult, b: JudgedResult) -> ExitCode:
    """Return the exit status where a limit is given, which a result that is not valid fails too."""
    judgements = [each.official.validity.judgement for each in (a, b)]
    if Judgement.BROKEN in judgements:
        return ExitCode.INVALID
    if judgements[1] is Judgement.MISSED:
        return ExitCode.MISSED
    return ExitCode.SLOWER if regression.outcome == "slower" else ExitCode.OK


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
    yield from ("", compared_text(comparison.a, comparison.b, terminal_width()))


def _side(name: str, side: Official) -> str:
    score, minutes = side.score, side.olympic_minutes
    time = "no olympic mean" if minutes is None else f"olympic mean {minutes * 60:.3f} s"
    runs = f"{len(score.completed)} runs"
    return f"{name}: {visible(f'{score.org} {score.system} {score.benchmark}')}: {time}, {runs}"


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.1%}"
