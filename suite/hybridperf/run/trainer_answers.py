"""Ask a trainer about a task: a module of its own answers as JSON, and the answer is cached.

It runs in a process, in the sandbox of a run, but for the data, which it may read: no clock runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError, missing_package
from hybridperf.findings import Finding
from hybridperf.log.writer import LogClock
from hybridperf.plan import ParallelPlan
from hybridperf.run import child
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.run.launcher import child_environment, local_command, python_command
from hybridperf.run.provenance import code_hashes, package_folder
from hybridperf.run.sandbox import sandbox_facts
from hybridperf.run.scratch import Scratch
from hybridperf.run.spec import RunSpec
from hybridperf.system.software import torch_folder
from hybridperf.untrusted import read_object, reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.tasks.task import Task

__all__ = ["answer", "answers", "cache", "cache_folder", "cache_place", "made_with"]

_LAST_LINES: Final = 3  #: of what a process prints that fails
_MOST_TEXT: Final = 600  #: characters of them
_EXCEPTION: Final = re.compile(r"[\w.]*(?:Error|Exception)\b")  #: begins a traceback's last line


def answers(trainer: str, module: str) -> bool:
    """Return whether the package ``trainer`` has ``module``."""
    try:
        return (package_folder(trainer) / f"{module}.py").exists()
    except ModuleNotFoundError:
        return False


def answer(
    task: Task, module: str, path: Path, *arguments: str, ranks: int = 1
) -> dict[str, object]:
    """Run ``module`` of the task's trainer with ``path``, the file of ``task``; return its answer.

    It runs on ``ranks`` ranks of this machine, and writes a JSON object to the file that is its
    second argument.

    Raises:
        UserError: exit status 4 if there is no PyTorch or no such module, or if it fails.
    """
    name = f"{task.trainer}.{module}"
    if torch_folder() is None:
        raise missing_package("torch")
    if not answers(task.trainer, module):
        remedy = f"write {module}.py in the task's trainer, as docs/planning.md says"
        finding = Finding(f"trainer.{module}", f"the module {name}", "none", remedy, task.name)
        raise UserError(finding, ExitCode.ENVIRONMENT)
    with contextlib.closing(Scratch()) as temporary:
        scratch = temporary.path / "scratch"
        scratch.mkdir()
        out = scratch / "answer.json"
        spec = _spec(task, path, temporary.path / module)
        command = local_command(spec, name, ranks, str(path.absolute()), str(out), *arguments)
        done = subprocess.run(
            python_command(spec, child.__name__, *command.module),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=child_environment(spec, command, ranks, scratch),
            cwd=scratch if spec.sandboxed else None,
            check=False,
        )
        if done.returncode:
            printed = done.stderr.decode(errors="backslashreplace")
            raise _refuse(task, module, _cause(printed) or f"status {done.returncode}")
        try:
            return read_object(out)
        except (OSError, ValueError) as error:
            raise _refuse(task, module, reason(error)) from error


def _spec(task: Task, path: Path, folder: Path) -> RunSpec:
    """Return a run in ``folder`` that is never made, in whose sandbox the trainer answers."""
    return RunSpec(
        folder=str(folder),
        attempt=0,
        task_path=str(path.absolute()),
        trainer=task.trainer,
        overrides={},
        plan=str(ParallelPlan()),
        seed=0,
        org="",
        platform="",
        division="open",
        clock=LogClock(),
        mode="open",
        sandbox=sandbox_facts("sandboxed", 1),
    )


def _cause(printed: str) -> str:
    """Return the last exception that a process ``printed``, else its last lines."""
    lines = printed.strip().splitlines()  # libraries may add lines as they are unloaded
    errors = [line for line in lines if _EXCEPTION.match(line)]
    return " ".join(errors[-1:] or lines[-_LAST_LINES:])[-_MOST_TEXT:]


def _refuse(task: Task, module: str, found: str) -> UserError:
    expected = f"an answer of {task.trainer}.{module}"
    finding = Finding(f"trainer.{module}", expected, found, "correct the cause", task.name)
    return UserError(finding, ExitCode.ENVIRONMENT)


def made_with(task: Task) -> dict[str, str]:
    """Return what every answer about ``task`` depends on: the task, PyTorch and the code.

    Raises:
        UserError: exit status 4 if PyTorch is not installed.
    """
    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise missing_package("torch") from None
    hashes = code_hashes(task.trainer).items()
    return {
        "task_sha256": task.sha256,
        "torch": torch,
        **{name: str(value) for name, value in hashes},
    }


def cache_folder() -> Path:
    """Return the user's folder for caches of this program (XDG base directory specification)."""
    stated = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # The specification has relative paths ignored.
    base = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return base / "hybridperf"


def cache_place(kind: str, task: Task, *marks: str) -> Path:
    """Return where an answer of ``kind`` is cached; the name of a user's task may be any text."""
    name = re.sub(r"[^a-z0-9]+", "-", task.name.lower())[:40].strip("-")
    digest = hashlib.sha256(task.name.encode(errors="backslashreplace")).hexdigest()[:8]
    return cache_folder() / kind / f"{'-'.join((name, digest, *marks))}.json"


def cache(place: Path, table: Mapping[str, object]) -> None:
    """Write ``table`` to ``place``.

    Raises:
        UserError: exit status 4 if it cannot be written.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, canonical_json(table))
    except OSError as error:
        remedy = "set XDG_CACHE_HOME to a folder that can be written"
        finding = Finding(
            "trainer.cache", "a file to be written", reason(error), remedy, str(place)
        )
        raise UserError(finding, ExitCode.ENVIRONMENT) from error
