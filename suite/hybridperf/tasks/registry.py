"""Registry of tasks and of their models' tensors: the suite's by name, users' by file."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from pathlib import Path
from typing import Any, Final

from hybridperf.errors import UserError
from hybridperf.findings import visible
from hybridperf.spelling import did_you_mean
from hybridperf.tasks.schema import build
from hybridperf.tasks.task import Task, out_of_bounds

__all__ = [
    "accepted_tensors",
    "find_task",
    "in_suite",
    "parse_task",
    "read_task",
    "resolve_task",
    "task_names",
    "task_path",
    "tensor_values",
]

_ROOT: Final = Path(__file__).parent
_TENSORS: Final = _ROOT / "tensors.toml"


def task_names() -> list[str]:
    """Return the names of all tasks of the suite, sorted."""
    return list(_names_in(_ROOT))


@functools.cache  # rules ask for every log
def _names_in(root: Path) -> tuple[str, ...]:
    paths = root.glob("*/*.toml")
    return tuple(sorted(path.relative_to(root).with_suffix("").as_posix() for path in paths))


def find_task(name: str) -> Task:
    """Read the task of the suite called ``name``.

    Raises:
        UserError: from `task_path` and `read_task`.
    """
    return read_task(task_path(name))


def resolve_task(text: str) -> Path:
    """Return the file of a task given on the command line, by name or by path of a TOML file.

    Raises:
        UserError: from `task_path`.
    """
    return Path(text) if text.endswith(".toml") else task_path(text)


def in_suite(path: Path) -> bool:
    """Return whether the task file at ``path`` is part of the suite."""
    return path.resolve().is_relative_to(_ROOT.resolve())


def task_path(name: str) -> Path:
    """Return the file of the task of the suite called ``name``.

    Raises:
        UserError: exit status 2, suggesting similar names, if there is no such task.
    """
    names = task_names()
    if name not in names:
        raise UserError.of(
            "task.unknown",
            "the name of a task",
            repr(name),
            f"{did_you_mean(name, names, most=3)} 'hybridperf list' shows all".lstrip(),
        )
    return _ROOT / f"{name}.toml"


def read_task(path: Path) -> Task:
    """Read the task file at ``path``.

    Raises:
        UserError: exit status 2 if the file cannot be read, and as `parse_task`.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _refuse(str(path), error.strerror or str(error)) from error
    return parse_task(content, str(path))


@functools.lru_cache(maxsize=64)  # rules ask for every log
def parse_task(content: bytes, path: str) -> Task:
    """Parse the ``content`` of a task file; ``path`` is for error messages.

    Raises:
        UserError: exit status 2 if it is not TOML, violates the schema or a value is out of bounds.
    """
    try:
        table = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise _refuse(path, str(error)) from error
    table["sha256"] = hashlib.sha256(content).hexdigest()
    task = build(Task, table, path=visible(path))
    for expected, found in out_of_bounds(task):
        raise UserError.of("task.bounds", expected, found, "correct it", path=visible(path))
    return task


def _refuse(path: str, found: str) -> UserError:
    return UserError.of(
        "task.file", "a TOML file of UTF-8 text", found, "correct it", path=visible(path)
    )


def accepted_tensors(task: Task) -> tuple[str, ...]:
    """Return the accepted SHA-256 of tensor names and shapes; empty if any model is accepted.

    A user's own task gives them as ``tensors_sha256``.
    """
    entry = _tensors().get(task.name, {}).get(str(task.version))
    return task.tensors_sha256 or ((entry["sha256"],) if entry else ())


def tensor_values(task: Task) -> int | None:
    """Return the number of values in the model's tensors; None if any model is accepted."""
    entry = _tensors().get(task.name, {}).get(str(task.version))
    return None if task.tensors_sha256 or entry is None else int(entry["values"])


@functools.cache
def _tensors() -> dict[str, Any]:
    return tomllib.loads(_TENSORS.read_text(encoding="utf-8"))
