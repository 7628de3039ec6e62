"""Watch a run from outside: an own clock, a budget, and an eye on ranks that die or fall silent."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from suite.logs import keys
from suite.logs.reader import parse_entry, read_log
from suite.logs.writer import TOKEN
from suite.runs.ending import (
    Ending,
    Outcome,
    explain_crash,
    read_output,
    tells_of_lost_peer,
)
from suite.runs.leader import Leader
from suite.runs.nodes import Nodes
from suite.runs.processes import end_processes
from suite.runs.pulse import read_pulse

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from types import FrameType

    from suite.logs.log import Entry
    from suite.runs.spec import RunSpec
    from suite.tasks.task import Limits

__all__ = ["Observer", "Progress", "StopRequest", "stop_on_signals", "supervise"]

_POLL_S: Final = 0.1
_GOES_ON: Final = frozenset({keys.BLOCK_START, keys.RUN_STOP})  #: what a resumed run logs first
_OBSERVE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    running: bool  #: the clock runs; before, the run initialises
    elapsed_s: float  #: of the current phase
    batches: int  #: global batches and evaluation chunks begun by rank 0
    epoch: int  #: last evaluated
    quality: float | None  #: last reported


class Observer(Protocol):
    """Who wants to know where a run stands."""

    def progress(self, progress: Progress) -> None:
        """Take note; called a few times a second."""


@dataclass(slots=True)
class StopRequest:
    """Whether somebody asked the harness to stop, and with which signal."""

    signal: signal.Signals | None = None


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request that a supervised run obeys within a second."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may have handlers
        return

    def note(number: int, _: FrameType | None) -> None:
        request.signal = signal.Signals(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class _Watch:
    """What the supervisor has seen so far."""

    launched_s: float
    resumed_s: float | None = None  #: when a resumed run had started, by the clock of its log
    offset: int = 0
    started_s: float | None = None
    stopped_s: float | None = None
    reached: bool = False
    epoch: int = 0
    quality: float | None = None
    batches: list[int] = field(default_factory=list)  #: begun, by rank
    alive_s: list[float] = field(default_factory=list)  #: when progress was last seen, by rank

    def read(self, spec: RunSpec, ranks: int) -> None:
        now_s = time.monotonic()
        self.alive_s = self.alive_s or [now_s] * ranks
        for entry in self._new_entries(spec.log):
            self.alive_s[0] = now_s
            if entry.key == keys.RUN_START and self.started_s is None:
                self.started_s = now_s
            elif entry.key in _GOES_ON and self.started_s is None:
                self.started_s = self.resumed_s
            if entry.key == keys.RUN_STOP and self.stopped_s is None:
                self.stopped_s = now_s
                self.reached = entry.metadata.get("status") == "success"
            elif entry.key == keys.EVAL_ACCURACY and isinstance(entry.value, int | float):
                self.quality = float(entry.value)
                epoch = entry.metadata.get("epoch_num")
                self.epoch = epoch if isinstance(epoch, int) else self.epoch
        before = self.batches or [0] * ranks
        self.batches = [beat.batches for beat in read_pulse(spec.pulse, ranks)]
        for rank in range(ranks):
            if self.batches[rank] != before[rank]:
                self.alive_s[rank] = now_s

    def silent_ranks(self, longest_s: float) -> list[int]:
        """Return the ranks that once noted progress and have not for so long.

        Of a trainer that notes none, rank 0 is judged by the log that it writes.
        """
        noted = [rank for rank, batches in enumerate(self.batches) if batches] or [0]
        now_s = time.monotonic()
        return [rank for rank in noted if now_s - self.alive_s[rank] > longest_s]

    def progress(self) -> Progress:
        since_s = self.started_s or self.launched_s
        elapsed_s = (self.stopped_s or time.monotonic()) - since_s
        first = self.batches[0] if self.batches else 0
        return Progress(self.started_s is not None, elapsed_s, first, self.epoch, self.quality)

    def ending(self, outcome: Outcome, reason: str = "") -> Ending:
        initialisation_s = run_s = None
        if self.started_s is not None:
            if self.resumed_s is None:
                initialisation_s = self.started_s - self.launched_s
            if self.stopped_s is not None:
                run_s = self.stopped_s - self.started_s
        return Ending(outcome, reason, initialisation_s, run_s)

    def _new_entries(self, log: Path) -> Iterator[Entry]:
        if log.stat().st_size == self.offset:
            return
        with log.open("rb") as file:
            file.seek(self.offset)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self.offset += whole
        for line in content[:whole].decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # the rules say what is wrong with a line
                yield parse_entry(line.partition(TOKEN)[2], 0)


def supervise(
    process: subprocess.Popen[bytes],
    spec: RunSpec,
    stop: StopRequest,
    observer: Observer,
    leader: Leader | None = None,
    resumed_at: int = 0,
) -> Ending:
    """Wait until the run has ended, or end it; no process of the run is left either way.

    Of a resumed run, the log already has ``resumed_at`` bytes, and its clock has been running.
    There is a ``leader`` where the run has more than one node.
    """
    leader = leader or Leader(Nodes(), Path(spec.folder))
    watch = _Watch(launched_s=time.monotonic(), offset=resumed_at)
    if resumed_at:
        watch.resumed_s = watch.launched_s - _elapsed_s(spec)
    try:
        verdict = _await_end(process, spec, watch, stop, observer, leader)
    finally:
        leader.call_off()
        end_processes(spec.path)
        process.wait()
        leader.collect(spec)
    if verdict is None and process.returncode == 0 and watch.stopped_s is not None:
        return watch.ending(Outcome.SUCCESS if watch.reached else Outcome.TARGET_MISSED)
    own = explain_crash(read_output(spec.output), process.returncode)
    outcome, reason = verdict or leader.trouble() or (Outcome.CRASHED, own)
    by_itself = verdict is None and not tells_of_lost_peer(own)
    if outcome is Outcome.CRASHED and (by_itself or tells_of_lost_peer(reason)):
        reason = own
    return watch.ending(outcome, reason)


def _await_end(
    process: subprocess.Popen[bytes],
    spec: RunSpec,
    watch: _Watch,
    stop: StopRequest,
    observer: Observer,
    leader: Leader,
) -> tuple[Outcome, str] | None:
    """Return how and why the run is to be ended, or None where its ranks have ended."""
    limits, ranks = spec.task().limits, spec.parallel_plan().ranks
    observed_s = 0.0
    while process.poll() is None:
        watch.read(spec, ranks)
        if time.monotonic() - observed_s > _OBSERVE_S:
            observer.progress(watch.progress())
            observed_s = time.monotonic()
        if stop.signal is not None:
            return Outcome.INTERRUPTED, f"stopped by {stop.signal.name}"
        if verdict := leader.trouble() or _over_limit(watch, limits):
            return verdict
        time.sleep(_POLL_S)
    watch.read(spec, ranks)
    return None


def _elapsed_s(spec: RunSpec) -> float:
    """Return how long the run has been going on by the clock of its log."""
    start = read_log(spec.log).first(keys.RUN_START)
    assert start is not None, "only a run that started is resumed"
    return (spec.clock.now_ms() - start.time_ms) / 1000


def _over_limit(watch: _Watch, limits: Limits) -> tuple[Outcome, str] | None:
    now_s = time.monotonic()
    if watch.started_s is None:
        if now_s - watch.launched_s > limits.initialisation_s:
            reason = f"initialisation took more than {limits.initialisation_s:g} s"
            return Outcome.OVER_BUDGET, reason
        return None
    if watch.stopped_s is not None:
        if now_s - watch.stopped_s > limits.ending_s:
            return Outcome.OVER_BUDGET, f"ending took more than {limits.ending_s:g} s"
        return None
    if now_s - watch.started_s > limits.run_s:
        return Outcome.OVER_BUDGET, f"training took more than {limits.run_s:g} s"
    if silent := watch.silent_ranks(limits.silence_s):
        return Outcome.SILENT, _describe_silence(silent, watch.batches, limits.silence_s)
    return None


def _describe_silence(silent: list[int], batches: list[int], silence_s: float) -> str:
    """Name the rank that fell behind: the others wait for it, or go on without it."""
    if len(silent) < len(batches):
        ranks = ", ".join(map(str, silent))
        return f"rank {ranks} made no progress for {silence_s:g} s while others did"
    silence = f"no rank made progress for {silence_s:g} s"
    least = min(batches)
    behind = [rank for rank, count in enumerate(batches) if count == least]
    if len(behind) == len(batches):
        return f"{silence}, since batch {least}"
    return f"{silence}: rank {behind[0]} stopped first, at batch {least}"
