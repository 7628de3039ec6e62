"""What this machine lacks to run the benchmarks, and how to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from suite.refusal import Refusal
from suite.systems.diagnosis import Diagnosis
from suite.systems.graphics import examine_graphics
from suite.systems.packages import examine_packages
from suite.systems.resources import examine_resources
from suite.tasks.data import check_data
from suite.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Diagnosis", "diagnose"]

_NEEDED: Final = "laptop"  #: tier of the tasks that should run anywhere


def diagnose(out: Path | None = None) -> list[Diagnosis]:
    """Examine all that a run with results in ``out`` needs; never raises for what is lacking."""
    return [*examine_packages(), *_tasks(), *examine_resources(out), *examine_graphics()]


def _tasks() -> Iterator[Diagnosis]:
    for name in task_names():
        needed = name.endswith(f"/{_NEEDED}")
        try:
            data = find_task(name).data
            check_data(data)
        except Refusal as refusal:
            detail, remedy = str(refusal), "reinstall hybridperf"
            if finding := refusal.finding:
                detail, remedy = f"needs {finding.expected}, found {finding.found}", finding.remedy
            yield Diagnosis(
                f"data of {name}",
                "missing" if needed else "optional",
                detail if needed else f"not here: {detail}",
                f"{remedy[:1].upper()}{remedy[1:]}.",
            )
        else:
            yield Diagnosis(f"data of {name}", "ok", data.source)
