"""``hybridperf compare``: test whether two results differ, by how much, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_packages, only_result
from hybridperf.regression import Regression, parse_percentage
from hybridperf.report.comparison import comparison_text, incomparable
from hybridperf.report.judgement import judged_entries
from hybridperf.score.compare import compare
from hybridperf.score.validity import Judgement

if TYPE_CHECKING:
    import argparse

    from hybridperf.report.judgement import JudgedResult

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf compare runs/local/results/one/resnet-laptop \\
  runs/local/results/two/resnet-laptop
hybridperf compare --fail-if-slower 3% base/local/results/one/resnet-laptop \\
  runs/local/results/one/resnet-laptop"""


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
    a, b = _read(options.a, options.b)
    if finding := incomparable(a, b, str(options.b)):
        raise UserError(finding, ExitCode.USAGE)
    comparison, regression = compare(a.official, b.official), None
    if options.fail_if_slower is not None:
        regression = Regression(comparison, options.fail_if_slower)
    if options.format == "json":
        added = {"regression": regression.as_json()} if regression else {}
        print_json(comparison.as_json() | added)
    else:
        print_line(comparison_text(a, b, comparison, terminal_width()))
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


def _read(*paths: Path) -> list[JudgedResult]:
    packages = [only_result(find_packages(path), path, "compare.path") for path in paths]
    entries = judged_entries(packages)
    for entry, path in zip(entries, paths, strict=True):
        if not entry.result.runs:
            expected, remedy = "logs called result_<n>.txt", "rename them"
            raise UserError.of(
                *("compare.path", expected, "none", remedy),
                path=str(path),
                exit_code=ExitCode.ENVIRONMENT,
            )
    return entries
