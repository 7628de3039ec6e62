"""Resumption of an interrupted run: same log, same clock, from the last checkpoint."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from hybridperf.log import keys
from hybridperf.log.reader import read_log
from hybridperf.log.writer import LogClock, LogWriter
from hybridperf.run.checkpoints import checkpoint_folder, sweep_checkpoints
from hybridperf.run.machine import machine_start
from hybridperf.run.provenance import code_hashes
from hybridperf.untrusted import whole

if TYPE_CHECKING:
    from hybridperf.log.log import Log
    from hybridperf.run.request import RunRequest
    from hybridperf.run.spec import RunSpec

__all__ = ["reopen", "resumable_epoch", "same_request"]


def same_request(spec: RunSpec, request: RunRequest) -> bool:
    """Return whether the attempt ``spec`` was made by a request equal to ``request``."""
    overrides, nodes = dict(request.overrides), request.nodes.count
    requested = (str(request.plan), request.launched, overrides, request.division, nodes)
    return (spec.plan, spec.trainer, spec.overrides, spec.division, spec.nodes) == requested


def resumable_epoch(spec: RunSpec) -> int | None:
    """Return the epoch of the checkpoint from which the attempt can resume, or None.

    It is the last evaluated epoch. A run that has stopped, or whose task, code or clock has
    changed since, cannot resume.
    """
    task = spec.task()
    if not task.evaluation.checkpoint or not spec.log.exists():
        return None
    log = read_log(spec.log)
    stated = {"name": task.name, "version": task.version, "sha256": task.sha256}
    changed = log.value(keys.TASK) != stated or spec.code != code_hashes(spec.trainer)
    evaluated = [entry.metadata.get("epoch_num") for entry in log.all(keys.EVAL_ACCURACY)]
    if changed or not evaluated or log.first(keys.RUN_STOP) or _now_ms(spec) < _last_ms(log):
        return None
    epoch = whole(evaluated[-1], 0)
    if epoch is not None and checkpoint_folder(spec.checkpoints, epoch).is_dir():
        return epoch
    return None


def reopen(spec: RunSpec, epoch: int) -> RunSpec:
    """Prepare the attempt to resume after ``epoch``, and return its new specification.

    The log records the epoch and the length of the gap. Its clock has not stopped: across a
    restart of the machine, wall time measures the gap.
    """
    log = read_log(spec.log)
    clock = LogClock(wall_ms=_now_ms(spec))
    gap_s = (clock.wall_ms - _last_ms(log)) / 1000
    with LogWriter(spec.log, clock) as writer:
        for name in reversed(_open_intervals(log)):
            writer.stop(f"{name}_stop", interrupted=True)
        writer.point(keys.RESUMED, {"epoch": epoch, "gap_s": gap_s})
    for node in range(spec.nodes):
        spec.pulse_of(node).unlink(missing_ok=True)
    spec.disk_full.unlink(missing_ok=True)
    sweep_checkpoints(spec.checkpoints, epoch)
    again = dataclasses.replace(spec, clock=clock, machine_start=machine_start(), resumed=epoch)
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
    return [name for name in running if f"{name}_start" != keys.RUN_START]
