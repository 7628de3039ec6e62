"""Go on with an interrupted run: from its last checkpoint, in its own log, on its own clock."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from suite.logs import keys
from suite.logs.clock import LogClock
from suite.logs.reader import read_log
from suite.logs.writer import LogWriter
from suite.runs.checkpoints import checkpoint_folder, sweep_checkpoints
from suite.runs.provenance import code_hashes

if TYPE_CHECKING:
    from suite.logs.log import Log
    from suite.runs.order import Order
    from suite.runs.spec import RunSpec

__all__ = ["machine_start", "reopen", "resumable_epoch", "same_order"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def machine_start() -> str:
    """Return what tells this start of this machine, and with it its monotonic clock, from others.

    Empty where the system does not say.
    """
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def same_order(spec: RunSpec, order: Order) -> bool:
    """Tell whether the attempt ``spec`` is one that ``order`` would begin, seed aside."""
    overrides, nodes = dict(order.overrides), order.nodes.count
    asked = (str(order.plan), order.launched, overrides, order.division, nodes)
    return (spec.plan, spec.trainer, spec.overrides, spec.division, spec.nodes) == asked


def resumable_epoch(spec: RunSpec) -> int | None:
    """Return the epoch whose checkpoint the attempt can go on from, or None where it cannot.

    That is the last one evaluated: of a run that ended, or whose task, code or clock is no longer
    the same, nothing can be resumed.
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
    epoch = evaluated[-1]
    if isinstance(epoch, int) and checkpoint_folder(spec.checkpoints, epoch).is_dir():
        return epoch
    return None


def reopen(spec: RunSpec, epoch: int) -> RunSpec:
    """Return the order to go on after ``epoch``; the log says so, and how long nothing went on.

    The clock of the log has not stood still: wall time bridges a new start of the machine.
    """
    log = read_log(spec.log)
    clock = LogClock(wall_ms=_now_ms(spec))
    gap_s = (clock.wall_ms - _last_ms(log)) / 1000
    with LogWriter(spec.log, clock) as writer:
        for name in reversed(_open_intervals(log)):
            writer.stop(f"{name}_stop", interrupted=True)
        writer.point(keys.RESUMED, {"epoch": epoch, "gap_s": gap_s})
    spec.pulse.unlink(missing_ok=True)
    sweep_checkpoints(spec.checkpoints, epoch)
    again = dataclasses.replace(spec, clock=clock, machine_start=machine_start(), resumed=epoch)
    again.write()
    return again


def _now_ms(spec: RunSpec) -> int:
    """Return the time by the log's clock, or by the wall's if that clock began to count anew."""
    same = spec.machine_start == machine_start() != ""
    return spec.clock.now_ms() if same else time.time_ns() // 1_000_000


def _last_ms(log: Log) -> int:
    return max((entry.time_ms for entry in log.entries), default=0)


def _open_intervals(log: Log) -> list[str]:
    """Return the names of the intervals inside the run that have not stopped, in order."""
    running: list[str] = []
    for entry in log.entries:
        name, _, edge = entry.key.rpartition("_")
        if entry.event_type == "INTERVAL_START" and edge == "start":
            running.append(name)
        elif entry.event_type == "INTERVAL_END" and edge == "stop" and name in running:
            running.remove(name)
    return [name for name in running if f"{name}_start" != keys.RUN_START]
