"""Command-line arguments shared by several commands."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
from pathlib import Path
from typing import Final

__all__ = [
    "PLAN_HELP",
    "add_data_dir",
    "add_format",
    "add_jobs",
    "add_nodes",
    "add_overrides",
    "add_roots",
    "add_run_arguments",
    "positive_seconds",
    "whole_number",
]

PLAN_HELP: Final = (
    "parallel plan, such as dp=2,pp=2,schedule=1f1b,microbatches=4 (default: dp=1); docs/plans.md "
    "has its keys and their values"
)


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    """Add ``--set``, whose help names ``example``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help=f"change a hyperparameter, such as {example}",
    )


def add_run_arguments(parser: argparse.ArgumentParser, out: Path) -> None:
    """Add the arguments of a run except the plan; ``out`` is the default folder of results."""
    add_overrides(parser, "optimizer.lr=0.1; the division's rules judge it")
    parser.add_argument(
        "--division",
        choices=("closed", "open"),
        default="closed",
        help="division of the rules to submit to (default: closed)",
    )
    parser.add_argument(
        "--trainer",
        metavar="PACKAGE",
        help="trainer package, with the modules train and predict (default: the reference trainer)",
    )
    parser.add_argument(
        "--out", type=Path, default=out, help=f"folder of the submission (default: {out})"
    )
    parser.add_argument(
        "--keep-weights",
        action="store_true",
        help="keep the final weights of every run next to its log, for 'hybridperf rescore'",
    )
    parser.add_argument(
        "--publish-errors",
        action="store_true",
        help="also publish exception messages, without words that look like secrets; they may hold "
        "others (default: exception types only)",
    )
    add_data_dir(parser)
    parser.add_argument("--org", default="local", help="submitting organisation (default: local)")
    parser.add_argument(
        "--system", metavar="NAME", help="name of the system entry (default: machine and plan)"
    )


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--data-dir``."""
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="FOLDER",
        help="folder with the data of tasks that need a download (default: HYBRIDPERF_DATA)",
    )


def add_format(parser: argparse.ArgumentParser, *choices: str) -> None:
    """Add ``--format`` with ``choices``, of which the first is the default, and ``--json``."""
    parser.add_argument(
        "--format",
        choices=choices,
        default=choices[0],
        help=f"output format (default: {choices[0]})",
    )
    parser.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="format",
        help="short for --format json",
    )


def add_nodes(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add ``--nodes``, whose help is ``meaning``, ``--node-rank`` and ``--rendezvous``."""
    parser.add_argument("--nodes", type=whole_number, metavar="N", help=meaning)
    parser.add_argument(
        "--node-rank",
        metavar="K",
        help="number of this machine, from 0 (default: the variable SLURM_NODEID)",
    )
    parser.add_argument(
        "--rendezvous", metavar="HOST:PORT", help="host of node 0, and a free port there"
    )


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add ``--jobs``."""
    parser.add_argument(
        "--jobs",
        nargs="?",
        type=whole_number,
        const=os.cpu_count() or 1,
        default=1,
        metavar="N",
        help="number of processes; without N, one per core (default: 1)",
    )


def add_roots(parser: argparse.ArgumentParser) -> None:
    """Add ``--root``."""
    parser.add_argument(
        "--root",
        type=Path,
        action="append",
        metavar="FOLDER",
        dest="roots",
        help="folder of the results and rounds that claims name; may be given several times "
        "(default: the current folder)",
    )


def positive_seconds(text: str) -> float:
    """Parse seconds, more than 0, for use as an argparse type.

    Raises:
        argparse.ArgumentTypeError: if ``text`` is anything else.
    """
    with contextlib.suppress(ValueError):
        if text.isascii() and 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected seconds, more than 0, found {text!r}")


def whole_number(text: str) -> int:
    """Parse a whole number from 1 to 1000, for use as an argparse type.

    Raises:
        argparse.ArgumentTypeError: if ``text`` is anything else.
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to 1000, found {text!r}")
    return int(text)
