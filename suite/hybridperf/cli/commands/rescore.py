"""``hybridperf rescore``: count published predictions again, and predict from published weights."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.cli.options import add_data_dir, add_format
from hybridperf.cli.printing import print_json, print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.log import keys
from hybridperf.log.package import NAME, find_results, only_result, read_result
from hybridperf.rules.evidence import quality_of, read_classes
from hybridperf.run.ending import stop_on_signals
from hybridperf.run.rescore import PredictorServer, find_weights, rescore_sealed
from hybridperf.tasks.data import load
from hybridperf.tasks.data.samples import export_data_folder
from hybridperf.tasks.registry import read_task, task_names, task_path
from hybridperf.untrusted import number, reason

if TYPE_CHECKING:
    import argparse

    from hybridperf.log.package import Package, Result, SealedRun
    from hybridperf.tasks.task import Task

__all__ = ["EXAMPLES", "add_arguments", "execute", "task_of"]

EXAMPLES: Final = """\
hybridperf rescore submissions/acme/results/laptop/resnet-laptop
hybridperf rescore submissions/acme/results/laptop/resnet-laptop --weights fetched"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf rescore``."""
    parser.add_argument("path", type=Path, help="folder of one result")
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FOLDER",
        help="folder of the weights, under the names that --keep-weights gives them "
        "(default: beside the logs)",
    )
    parser.add_argument(
        "--trainer",
        metavar="PACKAGE",
        help="package whose predictor scores a result of the open division or of a user's own task",
    )
    add_data_dir(parser)
    add_format(parser, "text", "json")


def execute(options: argparse.Namespace) -> ExitCode:
    """Print the quality of every completed run; exit status 3 if one differs from the manifest."""
    export_data_folder(options.data_dir)
    package = only_result(find_results(options.path), options.path, "rescore.path")
    result = read_result(package)
    path = task_of(result)
    rows = list(_rows(options, result, path))
    for row in rows:
        if options.format == "text":
            print_line(_line(row))
    if options.format == "json":
        print_json(rows)
    return ExitCode.OK if all(not row["problem"] for row in rows) else ExitCode.INVALID


def task_of(result: Result) -> Path:
    """Return the task file of the result: the suite's, or the file in the result's folder.

    Raises:
        UserError: exit status 3 if its runs were made with another version of the file.
    """
    run = next((run for run in result.runs if run.manifest is not None), None)
    name = None if run is None else run.fact("task", "name")
    path = task_path(name) if name in task_names() else result.package.task_file
    expected = None if run is None else run.fact("task", "sha256")
    if run is None or read_task(path).sha256 != expected:
        raise UserError.of(
            "rescore.task",
            f"the task file with SHA-256 {expected!s:.12}..., as the result names it",
            "another",
            "use the version of the suite that the result names",
            path=result.package.name,
            exit_code=ExitCode.INVALID,
        )
    return path


def _rows(options: argparse.Namespace, result: Result, path: Path) -> list[dict[str, object]]:
    task, rows = read_task(path), list[dict[str, object]]()
    with contextlib.closing(PredictorServer()) as server, stop_on_signals() as stop:
        for run in result.runs:
            if run.log.first(keys.ENDING) is not None:
                continue
            row = _count(result.package, run, task)
            if weights := find_weights(result.package, run, options.weights):
                trainer = _predictor(options, run, task)
                again = rescore_sealed(result.package, run, path, trainer, weights, server, stop)
                if again is None:
                    raise UserError(
                        "interrupted; give the same command again.", ExitCode.INTERRUPTED
                    )
                row["predicted_again"] = again.quality
                row["problem"] = row["problem"] or again.problem
            rows.append(row)
    return rows


def _count(package: Package, run: SealedRun, task: Task) -> dict[str, object]:
    """Count the published predictions of a run."""
    stated = number(run.fact("rescoring", "quality"), 0, 1)
    row: dict[str, object] = {"run": run.number, "stated": stated, "counted": None}
    row |= {"predicted_again": None, "problem": ""}
    name = run.fact("predictions", "path")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return row
    try:
        counted = quality_of(read_classes(package.folder / name), load(task.data).evaluation.labels)
    except (OSError, ValueError) as error:
        return row | {"problem": f"{name}: {reason(error)}"}
    differs = stated is None or abs(counted - stated) > 1e-9
    return row | {"counted": counted, "problem": "its predictions have another" if differs else ""}


def _predictor(options: argparse.Namespace, run: SealedRun, task: Task) -> str:
    """Return the package of the predictor; a package that only the result names is not started."""
    own = task.name not in task_names() or run.fact("division") != "closed"
    if own and options.trainer is None:
        raise UserError.of(
            "rescore.trainer",
            "the package whose predictor scores this result",
            "none",
            "name it with --trainer, if you trust it: it runs with your permissions",
        )
    return options.trainer if own else task.trainer


def _line(row: dict[str, object]) -> str:
    def percent(value: object) -> str:
        return f"{value:.2%}" if isinstance(value, int | float) else "none"

    words = [f"run {row['run']}: stated {percent(row['stated'])}"]
    words.append(f"counted from its predictions {percent(row['counted'])}")
    words.append(f"predicted again from its weights {percent(row['predicted_again'])}")
    problem = f": {row['problem']}" if row["problem"] else ""
    return f"{', '.join(words)}{problem}"
