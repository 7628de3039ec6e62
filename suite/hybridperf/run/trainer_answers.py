"""Ask a trainer about a task: a module of its own answers as JSON, in a process, and is cached."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError, missing_package
from hybridperf.findings import Finding
from hybridperf.run import child
from hybridperf.run.atomic import canonical_json, write_atomically
from hybridperf.run.provenance import code_hashes, package_folder
from hybridperf.system.software import torch_folder
from hybridperf.untrusted import read_object, reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    task: Task,
    module: str,
    path: Path,
    *arguments: str,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """Run ``module`` of the task's trainer with ``path``, the file of ``task``; return its answer.

    It writes a JSON object to the file that is its second argument. ``before`` precedes the module:
    what starts it on several ranks.

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
    with tempfile.TemporaryDirectory(prefix="hybridperf_answer_") as folder:
        out = Path(folder) / "answer.json"
        started = (*before, name, str(path.absolute()), str(out), *arguments)
        done = subprocess.run(
            [sys.executable, "-m", child.__name__, *started],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {}), child.PARENT_VARIABLE: str(os.getpid())},
            check=False,
        )
        if done.returncode:
            printed = done.stderr.decode(errors="backslashreplace")
            raise _refuse(task, module, _cause(printed) or f"status {done.returncode}")
        try:
            return read_object(out)
        except (OSError, ValueError) as error:
            raise _refuse(task, module, reason(error)) from error


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
