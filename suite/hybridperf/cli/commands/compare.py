"""``hybridperf compare``: test whether two results differ, by how much, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_format
from hybridperf.cli.printing import print_json, print_line, terminal_width
from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_packages, only_result
from hybridperf.report.comparison import comparison_text, incomparable
from hybridperf.report.judgement import judged_entries
from hybridperf.score.compare import compare

if TYPE_CHECKING:
    import argparse

    from hybridperf.report.judgement import JudgedResult

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf compare runs/local/results/one/resnet-laptop \\
  runs/local/results/two/resnet-laptop"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf compare``."""
    parser.add_argument("a", type=Path, metavar="A", help="folder of a result")
    parser.add_argument("b", type=Path, metavar="B", help="folder of the result to compare with it")
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print how B differs from A."""
    a, b = _read(options.a, options.b)
    if finding := incomparable(a, b, str(options.b)):
        raise UserError(finding, ExitCode.USAGE)
    comparison = compare(a.official, b.official)
    if options.format == "json":
        print_json(comparison.as_json())
    else:
        print_line(comparison_text(a, b, comparison, terminal_width()))
    return ExitCode.OK


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
