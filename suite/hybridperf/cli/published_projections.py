"""What ``hybridperf plan`` does without a task: projections of published results, and curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hybridperf.cli.options import add_jobs

if TYPE_CHECKING:
    import argparse

    from hybridperf.errors import ExitCode

__all__ = ["add_published", "execute_published"]


def add_published(parser: argparse.ArgumentParser) -> None:
    """Add ``--validate`` and ``--curves``, which need no task."""
    parser.add_argument(
        "--validate",
        type=Path,
        metavar="ROUNDS",
        help="project the published results of MLPerf's rounds below this folder, each from the "
        "smallest system of its submitter, and show the errors; needs no task",
    )
    parser.add_argument(
        "--curves",
        type=Path,
        metavar="FOLDER",
        help="write a page with projections of the full-size models on 8 to 4,096 devices to this "
        "folder; needs no task",
    )
    add_jobs(parser)


def execute_published(options: argparse.Namespace) -> ExitCode | None:
    """Execute ``--validate`` or ``--curves``; return None if neither is given."""
    # Imported late: a plan for a task needs neither reports nor scores.
    if options.validate is not None:
        from hybridperf.cli.validated_rounds import validate_on_rounds

        as_json = options.format == "json"
        return validate_on_rounds(options.validate, as_json=as_json, jobs=options.jobs)
    if options.curves is not None:
        from hybridperf.cli.projected_curves import write_projected_curves

        return write_projected_curves(options.curves)
    return None
