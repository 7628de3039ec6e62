"""``hybridperf export``: write the weights of a result as another library reads them."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from hybridperf.cli.commands.rescore import task_of
from hybridperf.cli.printing import print_line
from hybridperf.errors import ExitCode, UserError
from hybridperf.log.package import find_results, only_result, read_result, result_names
from hybridperf.run.profiles import ask_trainer
from hybridperf.run.rescore import find_weights
from hybridperf.run.spec import RunSpec
from hybridperf.tasks.registry import in_suite, read_task, resolve_task
from hybridperf.tasks.task import WeightFormat

if TYPE_CHECKING:
    import argparse

__all__ = ["EXAMPLES", "add_arguments", "execute"]

EXAMPLES: Final = """\
hybridperf export runs/local/results/laptop/resnet-laptop --format torchvision --out resnet
hybridperf export runs/local/results/laptop/bert-workstation --format transformers --out bert
hybridperf export checkpoints/epoch_3 --task bert/workstation --format transformers --out bert"""

_INTERCHANGE: Final = "interchange"  #: the trainer's module that knows the libraries' names
_PROGRESS: Final = "progress.json"  #: file of a checkpoint that no result has


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """The weights to export: those of a run of a result, or of a checkpoint."""

    name: str
    task: Path  #: file of the task
    paths: tuple[Path, ...]  #: the parts of the weights, or the folder of the checkpoint
    record: Path  #: file that is copied beside them: the manifest of the run, or the progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``hybridperf export``."""
    parser.add_argument(
        "path", type=Path, help="folder of one result with weights, or of a checkpoint"
    )
    parser.add_argument(
        "--format",
        choices=get_args(WeightFormat),
        required=True,
        help="library that is to read the weights; safetensors: the names of the suite",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="folder to make for the files"
    )
    parser.add_argument(
        "--run", type=int, help="number of the run (default: the first run with weights)"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FOLDER",
        help="folder of the weights, under the names that --keep-weights gives them "
        "(default: beside the logs)",
    )
    parser.add_argument(
        "--task", help="task of a checkpoint that is no longer in the folder of its run"
    )
    parser.add_argument(
        "--trainer",
        metavar="PACKAGE",
        help="package whose module interchange exports the weights of a user's own task",
    )


def execute(options: argparse.Namespace) -> ExitCode:
    """Write the weights, and the record of where they are from, into a new folder."""
    source = _find_source(options)
    task = read_task(source.task)
    if not in_suite(source.task) and options.trainer is None:
        raise UserError.of(
            "export.trainer",
            "the package whose module interchange exports the weights of a user's own task",
            "none",
            "name it with --trainer, if you trust it: it runs with your permissions",
        )
    if options.trainer is not None:
        task = dataclasses.replace(task, trainer=options.trainer)
    partial = _make_partial(options.out)
    try:
        answer = ask_trainer(
            task,
            _INTERCHANGE,
            source.task,
            *(options.format, str(partial), *map(str, source.paths)),
            readable=source.paths,
            writable=(partial,),
        )
        shutil.copyfile(source.record, partial / source.record.name)
        partial.rename(options.out)
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(partial)
        raise
    print_line(f"{source.name}: {answer.get('tensors')} tensors in {options.out}")
    print_line(_reading(options.format, str(answer.get("python", "")), options.out))
    return ExitCode.OK


def _make_partial(out: Path) -> Path:
    """Return a folder that becomes ``out`` once it is complete.

    Raises:
        UserError: exit status 2 if ``out`` exists.
    """
    if out.exists():
        raise UserError.of(
            "export.out", "a folder that does not exist yet", "one", "name another", path=str(out)
        )
    partial = out.absolute().with_name(f".{out.absolute().name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    return partial


def _reading(form: str, python: str, out: Path) -> str:
    """Return how the exported weights are read, for a message."""
    if form == "safetensors":
        return f"hybridperf run TASK --division open --initial {out / 'model.safetensors'}"
    if not python:
        return f"{form} builds no model of these sizes: the names are those of its family"
    if form == "transformers":
        return f"{python}.from_pretrained({str(out)!r})"
    file = str(out / "model.safetensors")
    return f"{python}.load_state_dict(safetensors.torch.load_file({file!r}))"


def _find_source(options: argparse.Namespace) -> _Source:
    """Return the weights that the options name.

    Raises:
        UserError: exit status 2 if they are not complete, 3 if a file has another hash than in the
            manifest, 4 if there are none.
    """
    path: Path = options.path
    if (path / _PROGRESS).is_file():
        task = _task_of_checkpoint(options)
        return _Source(str(path), task, (path.resolve(),), path / _PROGRESS)
    package = only_result(find_results(path), path, "export.path")
    result = read_result(package)
    for run in result.runs:
        if options.run not in {None, run.number}:
            continue
        if weights := find_weights(package, run, options.weights):
            manifest = package.folder / result_names(run.number)[1]
            name = f"run {run.number} of {package.name}"
            parts = tuple(each.resolve() for each in weights.values())
            return _Source(name, task_of(result), parts, manifest)
    which = "a run" if options.run is None else f"run {options.run}"
    raise UserError.of(
        "export.weights",
        f"the weights of {which} beside its log",
        "none",
        "make runs with --keep-weights, or name the folder of fetched weights with --weights",
        path=package.name,
        exit_code=ExitCode.ENVIRONMENT,
    )


def _task_of_checkpoint(options: argparse.Namespace) -> Path:
    """Return the file of the task whose run saved the checkpoint: the run's, or ``--task``."""
    if options.task is not None:
        return resolve_task(options.task)
    order = options.path.absolute().parents[2] / "run.json"
    if not order.is_file():
        raise UserError.of(
            "export.task",
            "the task of a checkpoint outside of the folder of its run",
            "none",
            "name the task with --task",
            path=str(options.path),
        )
    spec = RunSpec.read(order)
    return Path(spec.folder, spec.task_path)
