"""What follows each command on the command line."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

__all__ = [
    "of_check",
    "of_compare",
    "of_completion",
    "of_doctor",
    "of_list",
    "of_prepare",
    "of_rcp",
    "of_report",
    "of_run",
    "of_scale",
    "of_score",
    "of_system",
]

_PLAN: Final = "parallel plan, such as dp=2,pp=2,schedule=1f1b,microbatches=4 (default: dp=1)"


def of_list(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``list``."""
    _json(parser)


def of_prepare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``prepare``."""
    parser.add_argument("task", help="task, such as bert/workstation, or a TOML file with one")
    _data_dir(parser)


def of_run(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``run``."""
    parser.add_argument("task", help="task, such as resnet/laptop, or a TOML file with one")
    parser.add_argument(
        "--runs",
        type=_count,
        help="completed runs that the result should have (default: the task's)",
    )
    parser.add_argument("--plan", default="dp=1", help=_PLAN)
    _order(parser, Path("runs"))
    _nodes(parser)
    _json(parser)


def of_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check``."""
    parser.add_argument(
        "path", type=Path, nargs="?", help="log file, result folder, submission or round"
    )
    parser.add_argument(
        "--ruleset",
        metavar="NAME",
        help="rules to judge by, such as mlperf-training-2.1.0 (default: that of the round whose "
        "folder training_results_v<round> the path is in or holds, else hybridperf-1.0)",
    )
    parser.add_argument(
        "--mode",
        choices=("strict", "as-published"),
        help="all rules, or those that the official checker of an MLPerf round applied "
        "(default: strict by our ruleset, as-published by one of MLPerf)",
    )
    _format(parser, "text", "json", "junit")
    _jobs(parser)
    about = parser.add_mutually_exclusive_group()
    about.add_argument("--rules", action="store_true", help="list the rules of the ruleset")
    about.add_argument("--explain", metavar="RULE", help="say what a rule asks for, and why")


def of_score(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``score``."""
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
        help="factor as the rules say, as the official tool computes, or as the round published "
        "in scaling.json (default: rules; published for a round in a folder "
        "training_results_v<round>, without --rcp-set)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="folder to write scores.csv, scores.json and scores.parquet to",
    )
    _format(parser, "text", "json", "csv")
    _jobs(parser)


def of_compare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``compare``."""
    parser.add_argument("a", type=Path, metavar="A", help="folder of a result")
    parser.add_argument("b", type=Path, metavar="B", help="folder of the result to compare with it")
    _json(parser)


def of_rcp(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``rcp``."""
    parser.add_argument("action", choices=("make",), help="make: print a new point")
    parser.add_argument("task", help="name of the task, such as resnet/laptop")
    parser.add_argument(
        "--from",
        type=Path,
        metavar="FOLDER",
        dest="folder",
        help="folder of one result with twice the task's runs (default: make them)",
    )
    parser.add_argument(
        "--format",
        choices=("json", "toml"),
        default="json",
        help="a file for --rcp-set, or the lines of the task's file (default: json)",
    )
    parser.add_argument("--plan", default="dp=1", help=_PLAN)
    _order(parser, Path("reference_runs"))
    parser.set_defaults(runs=None)


def of_scale(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``scale``."""
    parser.add_argument("task", nargs="?", help="name of the task, such as resnet/laptop")
    parser.add_argument(
        "--devices",
        type=_counts,
        metavar="N,N,...",
        help="numbers of devices to make a result on each of, such as 1,2,4",
    )
    parser.add_argument(
        "--from",
        action="append",
        metavar="A,B,...",
        dest="paths",
        help="folders of results that are there, ours or a round's, instead of making them; "
        "the base is the one on fewest devices, the first of equal ones",
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--strong",
        action="store_const",
        const="strong",
        dest="kind",
        help="the same global batch on all numbers of devices (default where runs are made)",
    )
    kind.add_argument(
        "--weak",
        action="store_const",
        const="weak",
        dest="kind",
        help="the same batch for each device: the global batch grows with their number",
    )
    parser.add_argument(
        "--cause",
        help="what explains efficiencies above 100 %%, such as samples; accepted where the split "
        "bears it out",
    )
    parser.add_argument(
        "--runs", type=_count, help="completed runs of each result (default: the task's)"
    )
    parser.add_argument(
        "--plan",
        action="append",
        help="parallel plan, whose dp is set to what the devices allow (default: dp=1); or, "
        "given once for each number of devices, their plans",
    )
    _order(parser, Path("scaling"))
    _format(parser, "text", "json", "csv")


def of_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
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


def of_system(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``system``."""
    _json(parser)


def of_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor``."""
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        help="folder that runs would be written to (default: runs)",
    )
    _json(parser)


def of_completion(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``completion``."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def _order(parser: argparse.ArgumentParser, out: Path) -> None:
    """Add what runs are made by, the plan aside, in the folder ``out`` where none is named."""
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
        "--out", type=Path, default=out, help=f"folder of the submission (default: {out})"
    )
    _data_dir(parser)
    parser.add_argument("--org", default="local", help="organisation that submits (default: local)")
    parser.add_argument(
        "--system", metavar="NAME", help="name of the system entry (default: machine and plan)"
    )


def _data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="FOLDER",
        help="folder with the data of a task whose data comes with no package "
        "(default: the variable HYBRIDPERF_DATA)",
    )


def _nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes",
        type=_count,
        metavar="N",
        help="machines that share the plan's ranks equally; each is given the same command, with "
        "--out on storage that they share (default: 1)",
    )
    parser.add_argument(
        "--node-rank",
        metavar="K",
        help="which of them this one is, from 0 (default: the variable SLURM_NODEID)",
    )
    parser.add_argument(
        "--rendezvous", metavar="HOST:PORT", help="node 0, and a port that is free there"
    )


def _format(parser: argparse.ArgumentParser, *choices: str) -> None:
    parser.add_argument(
        "--format",
        choices=choices,
        default="text",
        help="what to print; json is the same as --json (default: text)",
    )
    _json(parser)


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for a program to read")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 1000, found {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    counts = text.split(",")
    if not all(each.isascii() and each.isdigit() and 0 < int(each) <= 10**6 for each in counts):
        raise argparse.ArgumentTypeError(
            f"expected numbers of devices divided by commas, such as 1,2,4, found {text!r:.80}"
        )
    return tuple(map(int, counts))


def _jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        nargs="?",
        type=_count,
        const=os.cpu_count() or 1,
        default=1,
        metavar="N",
        help="processes to work with; without N as many as there are cores (default: 1)",
    )
