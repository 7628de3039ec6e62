"""The tasks that come with the suite, by name, and those of users, by their files."""

from __future__ import annotations

import difflib
from pathlib import Path

from suite.findings import Finding
from suite.refusal import ExitCode, Refusal
from suite.tasks.task import Task, read_task

__all__ = ["find_task", "is_of_suite", "named_task", "task_names", "task_path"]

_ROOT = Path(__file__).parent


def task_names() -> list[str]:
    """Return the names of all tasks, sorted."""
    return sorted(
        path.relative_to(_ROOT).with_suffix("").as_posix() for path in _ROOT.glob("*/*.toml")
    )


def find_task(name: str) -> Task:
    """Read the task called ``name``.

    Raises:
        Refusal: as `task_path`.
    """
    return read_task(task_path(name))


def named_task(text: str) -> Path:
    """Return the file of the task that a user names: by its name, or by its own TOML file.

    Raises:
        Refusal: as `task_path`.
    """
    return Path(text) if text.endswith(".toml") else task_path(text)


def is_of_suite(path: Path) -> bool:
    """Tell whether the task file at ``path`` comes with the suite."""
    return path.resolve().is_relative_to(_ROOT.resolve())


def task_path(name: str) -> Path:
    """Return the file of the task called ``name``.

    Raises:
        Refusal: exit status 2, with the nearest names, where there is no such task.
    """
    names = task_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.3)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        found = Finding(
            "task.unknown",
            "the name of a task",
            repr(name),
            f"{hint}'hybridperf list' shows all",
        )
        raise Refusal(found, ExitCode.USAGE)
    return _ROOT / f"{name}.toml"
