"""The command line's grammar, with examples."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final, NoReturn

import suite
from suite.cli import arguments
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


#: name -> (one line, grammar, examples)
COMMANDS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], str]]] = {
    "list": ("show the tasks", arguments.of_list, "hybridperf list\n  hybridperf list --json"),
    "run": (
        "train a task to its target, as often as its result takes",
        arguments.of_run,
        """hybridperf run resnet/laptop
  hybridperf run resnet/laptop --plan dp=2,pp=2 --runs 5
  hybridperf run resnet/laptop --plan pp=2,schedule=gpipe,microbatches=4
  hybridperf run resnet/laptop --set optimizer.lr=0.05
  hybridperf run resnet/laptop --plan dp=4 --nodes 2 --node-rank 0 --rendezvous node0:29500""",
    ),
    "prepare": (
        "turn the text of a task into tokens, once, before its runs",
        arguments.of_prepare,
        "hybridperf prepare bert/workstation --data-dir wikitext",
    ),
    "check": (
        "say whether logs and results keep the rules, and if not, why",
        arguments.of_check,
        """hybridperf check runs
  hybridperf check runs --format junit > checked.xml
  hybridperf check --rules
  hybridperf check --explain log.chain
  hybridperf check training_results_v2.1 --ruleset mlperf-training-2.1.0 --mode as-published""",
    ),
    "score": (
        "turn results into times to train with intervals",
        arguments.of_score,
        """hybridperf score runs
  hybridperf score submissions/hybridperf --out scores
  hybridperf score training_results_v2.1 --rcp-set rcps --rcp compat""",
    ),
    "compare": (
        "say whether two results differ, by how much, and why",
        arguments.of_compare,
        """hybridperf compare runs/local/results/one/resnet-laptop \\
    runs/local/results/two/resnet-laptop""",
    ),
    "scale": (
        "say how efficiently more devices make training faster, and why",
        arguments.of_scale,
        """hybridperf scale resnet/laptop --devices 1,2
  hybridperf scale resnet/laptop --devices 1,2,4 --plan dp=1 --plan dp=2 --plan dp=2,pp=2 --weak
  hybridperf scale --from runs/a/results/one/bert-laptop,runs/a/results/two/bert-laptop""",
    ),
    "rcp": (
        "make reference convergence points of a task",
        arguments.of_rcp,
        """hybridperf rcp make resnet/laptop > rcps_resnet-laptop.json
  hybridperf rcp make resnet/laptop --from reference_runs --format toml""",
    ),
    "report": (
        "write the leaderboard as a page, as Markdown and as CSV",
        arguments.of_report,
        "hybridperf report runs\n  hybridperf report submissions --out reports",
    ),
    "system": ("describe this machine as a result would", arguments.of_system, "hybridperf system"),
    "doctor": (
        "say what is missing here and how to get it",
        arguments.of_doctor,
        "hybridperf doctor",
    ),
    "completion": (
        "print a script that completes commands in your shell",
        arguments.of_completion,
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
