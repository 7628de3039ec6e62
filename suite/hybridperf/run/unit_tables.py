"""Unit tables of tasks: those of the suite, and those that trainers count of tasks of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding
from hybridperf.projection.units import UnitTable, load_units
from hybridperf.run.trainer_answers import answer, cache, cache_place, made_with
from hybridperf.tasks.registry import in_suite, read_task
from hybridperf.untrusted import read_object

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.tasks.task import Task

__all__ = ["known_units", "units_of"]

_KIND: Final = "units"  #: of what is cached, and the trainer's module that counts it


def units_of(path: Path) -> UnitTable:
    """Return the unit table of the task at ``path``.

    Where it is not part of the suite, the task's trainer counts it, which takes seconds, unless the
    cache has one of the same task, PyTorch and code.

    Raises:
        UserError: exit status 4 if the trainer cannot count it.
    """
    if found := known_units(path):
        return found
    task = read_task(path)
    answered = answer(task, _KIND, path)
    try:
        table = _checked(answered, task)
    except ValueError as error:
        expected = f"a unit table of {task.trainer}.{_KIND}"
        finding = Finding("units.table", expected, str(error), "correct it", task.name)
        raise UserError(finding, ExitCode.ENVIRONMENT) from error
    cache(cache_place(_KIND, task), {"made_with": made_with(task), "table": table.as_table()})
    return table


def known_units(path: Path) -> UnitTable | None:
    """Return the unit table of the task at ``path``; None if it has not been counted yet."""
    task = read_task(path)
    if in_suite(path):
        return load_units(task.name)
    try:
        cached = read_object(cache_place(_KIND, task))
        if cached["made_with"] != made_with(task):
            return None
        return _checked(cached["table"], task)
    except (OSError, LookupError, ValueError, ModuleNotFoundError, UserError):
        return None


def _checked(table: object, task: Task) -> UnitTable:
    """Return the unit table that JSON states as ``table``.

    Raises:
        ValueError: saying what is wrong, if it is not one of the units of ``task``.
    """
    found = UnitTable.from_table(table)
    names = tuple(unit.name for unit in found.units)
    if names != task.units:
        raise ValueError(f"the units {names!r:.80} of a task with {task.units!r:.80}")
    return found
