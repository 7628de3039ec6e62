"""The task that a log is of: one of the suite's, or a user's own, whose file stands beside it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from suite.findings import Finding
from suite.logs import keys
from suite.logs.package import PUT_BACK
from suite.logs.strict_json import read_bounded, reason
from suite.refusal import Refusal
from suite.tasks.registry import find_task, task_names
from suite.tasks.task import parse_task

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from suite.logs.package import SealedRun
    from suite.tasks.task import Task

__all__ = ["read_own_task", "task_of", "unknown_task"]

_CAP_BYTES: Final = 2**18
_RULE: Final = "result.task"


def read_own_task(
    path: Path, name: str, runs: Iterable[SealedRun]
) -> tuple[Task | None, list[Finding]]:
    """Read the task's file at ``path``, if it is there and one of ``runs`` is of no task of ours.

    ``name`` says to a reader where it stands. Never raises for what the file contains.
    """
    if all(_benchmark(run) in task_names() for run in runs):
        return None, []
    try:
        return parse_task(read_bounded(path, _CAP_BYTES), name), []
    except FileNotFoundError:
        return None, []
    except (OSError, ValueError) as error:
        expected = "the file of a task, which can be read"
        return None, [Finding(_RULE, expected, reason(error), PUT_BACK, name)]
    except Refusal as refusal:
        if refusal.finding is None:
            raise
        return None, [dataclasses.replace(refusal.finding, rule=_RULE, remedy=PUT_BACK)]


def task_of(run: SealedRun, own: Task | None) -> Task | None:
    """Return the task of the suite, or else the user's ``own``, that the log names, if any."""
    name = _benchmark(run)
    if name in task_names():
        return find_task(str(name))
    return own if own is not None and own.name == name else None


def unknown_task(run: SealedRun, own: Task | None) -> Finding:
    """Return what is wrong with a log that names neither a task of the suite nor ``own``."""
    name = _benchmark(run)
    expected = "submission_benchmark to name a task of this suite"
    remedy = "see 'hybridperf list'; logs of a round of MLPerf are checked with --ruleset"
    if own is not None:
        expected += f", or {own.name}, as task.toml beside the log"
    if run.log.first(keys.TASK) is not None:  # no other harness writes that
        remedy = f"see 'hybridperf list', or for a user's own task {PUT_BACK}, task.toml"
    found = "none" if name is None else f"{name!r:.80}"
    return Finding("run.benchmark", expected, found, remedy, run.log.path)


def _benchmark(run: SealedRun) -> object:
    return run.log.value(keys.SUBMISSION_BENCHMARK)
