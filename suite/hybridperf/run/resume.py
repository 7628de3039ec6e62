"""Resumption of an interrupted run: same log, same clock, from the last checkpoint.

The trainer decides the content of a checkpoint; the harness decides when it is made and which
checkpoint is loaded. Each appears atomically when complete, and the last two stay. A resumed run
has another segment: `hybridperf.log.segments`.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import time
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.log.segments import last_checkpoint
from hybridperf.log.writer import LogClock, LogWriter
from hybridperf.run.ending import machine_start
from hybridperf.run.files import sync
from hybridperf.run.provenance import code_hashes

if TYPE_CHECKING:
    from pathlib import Path

    from hybridperf.log.log import Log
    from hybridperf.run.request import RunRequest
    from hybridperf.run.spec import RunSpec

__all__ = [
    "begin_checkpoint",
    "checkpoint_folder",
    "complete_checkpoint",
    "reopen",
    "resumable_step",
    "same_request",
    "sweep_checkpoints",
]

_KEPT: Final = 2  # two: the last one may not be in the log yet
_NAME: Final = re.compile(r"step_(\d+)")
_GOING_ON: Final = frozenset({keys.INIT_START, keys.RUN_START})  #: intervals that segments share


def same_request(spec: RunSpec, request: RunRequest) -> bool:
    """Return whether the attempt ``spec`` was made by a request equal to ``request``."""
    overrides, nodes = dict(request.overrides), request.nodes.count
    requested = (str(request.plan), request.launched, overrides, request.division, nodes)
    same = (spec.plan, spec.trainer, spec.overrides, spec.division, spec.nodes) == requested
    return same and spec.initial == request.initial_weights()


def resumable_step(spec: RunSpec, *, from_start: bool = False) -> int | None:
    """Return the step of the checkpoint from which the attempt can resume, or None.

    It is the last one in the log; with ``from_start``, 0 if there is none yet. A run that has
    stopped, or whose task, code or clock has changed since, cannot resume.
    """
    task = spec.task()
    if not spec.saves_checkpoints or not spec.log.exists():
        return None
    log = read_log(spec.log)
    stated = {"name": task.name, "version": task.version, "sha256": task.sha256}
    changed = log.value(keys.TASK) != stated or spec.code != code_hashes(spec.trainer)
    if changed or log.first(keys.RUN_STOP) or _now_ms(spec) < _last_ms(log):
        return None
    step = last_checkpoint(log.entries)
    if step is None:
        return 0 if from_start else None
    return step if checkpoint_folder(spec.checkpoints, step).is_dir() else None


def reopen(
    spec: RunSpec, step: int, lost: str = "the harness", why: str = "it was ended"
) -> RunSpec:
    """Prepare the attempt to go on from ``step`` under its plan, and return its new specification.

    The log records the segment, what was ``lost`` and why, and the length of the gap. Its clock has
    not stopped: across a restart of the machine, wall time measures the gap.
    """
    log, plan = read_log(spec.log), spec.parallel_plan()
    clock = LogClock(wall_ms=_now_ms(spec))
    evaluated = log.all(keys.EVAL_ACCURACY)
    done = "epoch" if spec.task().evaluation.unit == "epochs" else "samples"
    segment = {
        done: keys.progress_of(evaluated[-1].metadata) if evaluated else 0,
        "gap_s": (clock.wall_ms - _last_ms(log)) / 1000,
        "first_step": step,
        "plan": str(plan),
        "ranks": plan.ranks,
        "nodes": len(spec.rank_nodes),
        "lost": lost,
        "why": why,
    }
    with LogWriter(spec.log, clock) as writer:
        for name in reversed(_open_intervals(log)):
            writer.stop(f"{name}_stop", interrupted=True)
        writer.point(keys.RESUMED, segment)
    for node in range(spec.nodes):
        spec.pulse_of(node).unlink(missing_ok=True)
    spec.disk_full.unlink(missing_ok=True)
    sweep_checkpoints(spec.checkpoints, step)
    again = dataclasses.replace(spec, clock=clock, machine_start=machine_start(), resumed=step)
    again.write()
    return again


def _now_ms(spec: RunSpec) -> int:
    """Return the time by the log's clock, or wall time if the machine was restarted since."""
    same = spec.machine_start == machine_start() != ""
    return spec.clock.now_ms() if same else time.time_ns() // 1_000_000


def _last_ms(log: Log) -> int:
    return max((entry.time_ms for entry in log.entries), default=0)


def _open_intervals(log: Log) -> list[str]:
    """Return the names of the intervals inside the run that are still open, in order of start."""
    running: list[str] = []
    for entry in log.entries:
        name, _, edge = entry.key.rpartition("_")
        if entry.event_type == "INTERVAL_START" and edge == "start":
            running.append(name)
        elif entry.event_type == "INTERVAL_END" and edge == "stop" and name in running:
            running.remove(name)
    return [name for name in running if f"{name}_start" not in _GOING_ON]


def checkpoint_folder(folder: Path, step: int) -> Path:
    """Return the folder of the complete checkpoint from which training goes on with ``step``."""
    return folder / f"step_{step}"


def begin_checkpoint(folder: Path, step: int) -> Path:
    """Return the temporary folder to which every rank writes its part of the checkpoint."""
    return folder / f".step_{step}"


def complete_checkpoint(folder: Path, step: int) -> None:
    """Make the checkpoint that all ranks have written durable, and remove all but the last two."""
    written = begin_checkpoint(folder, step)
    for path in (written, *written.rglob("*")):
        if path.is_file() or path.is_dir():
            sync(path)
    written.rename(checkpoint_folder(folder, step))
    sync(folder)
    for old in sorted(_complete(folder))[:-_KEPT]:
        shutil.rmtree(checkpoint_folder(folder, old))


def sweep_checkpoints(folder: Path, last: int) -> None:
    """Remove incomplete checkpoints, and complete ones that are later than step ``last``."""
    if not folder.is_dir():
        return
    for path in folder.glob(".step_*"):
        shutil.rmtree(path)
    for step in _complete(folder):
        if step > last:
            shutil.rmtree(checkpoint_folder(folder, step))


def _complete(folder: Path) -> list[int]:
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return [int(name[1]) for name in names if name is not None]
