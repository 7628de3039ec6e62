"""Which tensors the model of a task has: what the closed division asks of the saved weights."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hybridperf.tasks.task import Task

__all__ = ["accepted_tensors", "tensor_values"]

_FILE: Final = Path(__file__).with_name("tensors.toml")


def accepted_tensors(task: Task) -> tuple[str, ...]:
    """Return the accepted SHA-256 of names and shapes of the tensors; empty if any model may be.

    A user's own task states them itself, as ``tensors_sha256``.
    """
    stated = _table().get(task.name, {}).get(str(task.version))
    return task.tensors_sha256 or ((stated["sha256"],) if stated else ())


def tensor_values(task: Task) -> int | None:
    """Return how many numbers the tensors of the task's model hold; None if any model may be."""
    stated = _table().get(task.name, {}).get(str(task.version))
    return None if task.tensors_sha256 or stated is None else int(stated["values"])


@functools.cache
def _table() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))
