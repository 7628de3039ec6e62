"""The specification of a run, for tests that need one without the command that writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hybridperf.log.writer import LogClock
from hybridperf.run.spec import RunSpec
from hybridperf.tasks.registry import task_path

if TYPE_CHECKING:
    from pathlib import Path


def run_spec(folder: Path, **fields: Any) -> RunSpec:
    """Return a closed run of the reference trainer in ``folder``, but for the ``fields`` given."""
    usual: dict[str, Any] = {
        "attempt": 0,
        "task_path": str(task_path("resnet/laptop")),
        "trainer": "hybridperf_reference",
        "overrides": {},
        "plan": "dp=1",
        "seed": 1,
        "org": "local",
        "platform": "here",
        "division": "closed",
        "clock": LogClock(),
    }
    return RunSpec(folder=str(folder), **usual | fields)
