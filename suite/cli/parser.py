"""The command line's grammar, with examples."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import suite
from suite.refusal import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["COMMANDS", "build_parser"]

_EXIT_STATUS: Final = """\
exit status: 0 ok · 1 a run missed its target · 2 usage · 3 invalid log or result ·
4 this machine lacks something · 5 interrupted: the same command goes on"""


class _Parser(argparse.ArgumentParser):
    """Say in one sentence what is wrong with the command line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ExitCode.USAGE, f"hybridperf: {message}; see '{self.prog} --help'.\n")


def _list(parser: argparse.ArgumentParser) -> None:
    _json(parser)


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help="name of the task, such as resnet/laptop")
    parser.add_argument(
        "--plan",
        default="dp=1",
        help="parallel plan: dp, pp, schedule=gpipe|1f1b, microbatches (default: dp=1)",
    )
    parser.add_argument(
        "--runs",
        type=_count,
        help="completed runs that the result should have (default: the task's)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="change a hyperparameter, such as optimizer.lr=0.1; the division's rules judge it",
    )
    parser.add_argument(
        "--division",
        choices=("closed", "open"),
        default="closed",
        help="rules to enter under (default: closed)",
    )
    parser.add_argument(
        "--trainer",
        metavar="PACKAGE",
        help="package with the modules train and predict to launch instead of ours",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="folder of the submission (default: runs)"
    )
    parser.add_argument("--org", default="local", help="organisation that submits (default: local)")
    parser.add_argument(
        "--system", metavar="NAME", help="name of the system entry (default: machine and plan)"
    )
    _json(parser)


def _check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, help="log file, result folder, submission or round")
    parser.add_argument(
        "--ruleset",
        default="hybridperf-1.0",
        metavar="NAME",
        help="rules to judge by, such as mlperf-training-2.1.0 (default: hybridperf-1.0)",
    )
    parser.add_argument(
        "--mode",
        choices=("strict", "as-published"),
        help="all rules, or those that the official checker of an MLPerf round applied "
        "(default: the ruleset's)",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="what to print; json is the same as --json (default: text)",
    )
    _json(parser)


def _score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="result folder, submission or round of MLPerf (default: runs)",
    )
    parser.add_argument(
        "--rcp-set",
        type=Path,
        metavar="FOLDER",
        help="folder of MLCommons' reference convergence points, rcps_<benchmark>.json",
    )
    parser.add_argument(
        "--rcp",
        choices=("rules", "compat", "published"),
        default="rules",
        help="factor as the rules say, as the official tool computes, or as the round published "
        "in scaling.json (default: rules)",
    )
    _json(parser)


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", type=Path, metavar="A", help="folder of a result")
    parser.add_argument("b", type=Path, metavar="B", help="folder of the result to compare with it")
    _json(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        type=Path,
        nargs="?",
        default=Path("runs"),
        help="submission, or folder of submissions (default: runs)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="folder of the pages (default: report inside the submission's folder)",
    )


def _system(parser: argparse.ArgumentParser) -> None:
    _json(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        help="folder that runs would be written to (default: runs)",
    )
    _json(parser)


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


#: name -> (one line, grammar, examples)
COMMANDS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], str]]] = {
    "list": ("show the tasks", _list, "hybridperf list\n  hybridperf list --json"),
    "run": (
        "train a task to its target, as often as its result takes",
        _run,
        """hybridperf run resnet/laptop
  hybridperf run resnet/laptop --plan dp=2,pp=2 --runs 5
  hybridperf run resnet/laptop --plan pp=2,schedule=gpipe,microbatches=4
  hybridperf run resnet/laptop --set optimizer.lr=0.05""",
    ),
    "check": (
        "say whether logs and results keep the rules, and if not, why",
        _check,
        """hybridperf check runs
  hybridperf check runs --json
  hybridperf check training_results_v2.1 --ruleset mlperf-training-2.1.0 --mode as-published""",
    ),
    "score": (
        "turn results into times to train with intervals",
        _score,
        """hybridperf score runs
  hybridperf score submissions/hybridperf --json
  hybridperf score training_results_v2.1 --rcp-set rcps --rcp compat""",
    ),
    "compare": (
        "say whether two results differ, by how much, and why",
        _compare,
        """hybridperf compare runs/local/results/one/resnet-laptop \\
    runs/local/results/two/resnet-laptop""",
    ),
    "report": (
        "write the leaderboard as a page, as Markdown and as CSV",
        _report,
        "hybridperf report runs\n  hybridperf report submissions --out reports",
    ),
    "system": ("describe this machine as a result would", _system, "hybridperf system"),
    "doctor": ("say what is missing here and how to get it", _doctor, "hybridperf doctor"),
    "completion": (
        "print a script that completes commands in your shell",
        _completion,
        """eval "$(hybridperf completion bash)"
  hybridperf completion fish > ~/.config/fish/completions/hybridperf.fish""",
    ),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="hybridperf",
        description="How long does this system take to train this model to this quality, why, "
        "and may these two numbers be compared?",
        epilog=_EXIT_STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hybridperf {suite.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (line, grammar, examples) in COMMANDS.items():
        grammar(
            commands.add_parser(
                name,
                help=line,
                description=f"{line[0].upper()}{line[1:]}.",
                epilog=f"examples:\n  {examples}\n\n{_EXIT_STATUS}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for a program to read")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise argparse.ArgumentTypeError(
            f"expected a number of runs from 1 to 1000, found {text!r}"
        )
    return int(text)
