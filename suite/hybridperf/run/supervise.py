"""Supervision of a run: independent timing, time limits and the progress of every rank."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from hybridperf.log import keys
from hybridperf.log.reader import parse_entry, read_log
from hybridperf.log.writer import TOKEN
from hybridperf.run.elastic import segment_on
from hybridperf.run.ending import (
    Ending,
    MachineWatch,
    RunOutcome,
    explain_crash,
    is_lost_peer,
    lost_part,
    read_output,
)
from hybridperf.run.processes import StoppedProcesses, end_tree, read_pulse
from hybridperf.untrusted import LOG_CAP_BYTES, number, open_bounded, reason

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

    from hybridperf.log.log import Entry
    from hybridperf.run.ending import StopRequest
    from hybridperf.run.nodes import NodeServer
    from hybridperf.run.rank_server import RankServer
    from hybridperf.run.spec import RunSpec
    from hybridperf.tasks.task import Limits

__all__ = ["Observer", "RunProgress", "supervise"]

_POLL_S: Final = 0.1
_GOES_ON: Final = frozenset({keys.BLOCK_START, keys.RUN_STOP})  #: first keys of a resumed run
_OBSERVE_S: Final = 0.25
#: outcomes of runs that lost a rank or node before they ended
_LOSSES: Final = frozenset({RunOutcome.CRASHED, RunOutcome.UNSTARTED})


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run."""

    running: bool  #: whether the timed part has started; before, the run initialises
    elapsed_s: float  #: since launch, or since run_start if ``running``
    batches: int  #: global batches and evaluation chunks begun by rank 0
    trained: str  #: training before the last evaluation, such as ``epoch 8``; "" before the first
    quality: float | None  #: last reported quality, a fraction


class Observer(Protocol):
    """Receives the progress of a run."""

    def progress(self, progress: RunProgress) -> None:
        """Handle the current progress; called about four times per second."""

    def segment(self, attempt: int, story: str) -> None:
        """Handle another segment of the run; ``story`` is one line: why, from where, which plan."""


@dataclass(slots=True)
class _Watch:
    """The supervisor's observations so far; times are of `time.monotonic`."""

    launched_s: float
    resumed_s: float | None = None  #: run_start of a resumed run, by the clock of its log
    offset: int = 0  #: number of bytes of the log read so far
    started_s: float | None = None
    stopped_s: float | None = None
    saved: bool = False  #: whether the last entries that were read have a checkpoint
    back: str = ""  #: node with which the run is to go on from that checkpoint
    reached: bool = False
    trained: str = ""
    quality: float | None = None
    problem: str = ""  #: reason why the log cannot be read
    batches: list[int] = field(default_factory=list)  #: [rank]: batches begun
    alive_s: list[float] = field(default_factory=list)  #: [rank]: time of the last progress

    def read(
        self,
        spec: RunSpec,
        ranks: int,
        peers: NodeServer | None = None,
        written_s: Mapping[str, float] | None = None,
    ) -> None:
        """Read new entries and progress; ``written_s`` has the times of the harness's entries."""
        now_s = time.monotonic()
        self.alive_s = self.alive_s or [now_s] * ranks
        try:
            entries = list(self._new_entries(spec.log))
        except (OSError, ValueError) as error:
            entries, self.problem = [], f"its log cannot be read: {reason(error)}"
        self.saved = any(entry.key == keys.CHECKPOINT for entry in entries)
        for entry in entries:
            self.alive_s[0] = now_s
            # Some time later this process may have been stopped, or waited for a core.
            at_s = (written_s or {}).get(entry.key, now_s)
            if entry.key == keys.RUN_START and self.started_s is None:
                self.started_s = at_s
            elif entry.key in _GOES_ON and self.started_s is None:
                self.started_s = self.resumed_s
            if entry.key == keys.RUN_STOP and self.stopped_s is None:
                self.stopped_s = at_s
                self.reached = entry.metadata.get("status") == "success"
            elif entry.key == keys.EVAL_ACCURACY and (quality := number(entry.value)) is not None:
                self.quality = float(quality)
                if keys.progress_of(entry.metadata) is not None:
                    self.trained = keys.progress_text(entry.metadata)
        before = self.batches or [0] * ranks
        counts = [tuple(read_pulse(spec.pulse_of(0), ranks))]
        counts += peers.batches(ranks) if peers is not None else []
        self.batches = [max(each) for each in zip(*counts, strict=True)]  # 0: another node's rank
        for rank in range(ranks):
            if self.batches[rank] != before[rank]:
                self.alive_s[rank] = now_s

    def silent_ranks(self, longest_s: float) -> list[int]:
        """Return the ranks that have made no progress for ``longest_s``, after earlier progress.

        If the trainer records no progress at all, rank 0 is judged by new entries of its log.
        """
        noted = [rank for rank, batches in enumerate(self.batches) if batches] or [0]
        now_s = time.monotonic()
        return [rank for rank in noted if now_s - self.alive_s[rank] > longest_s]

    def progress(self) -> RunProgress:
        since_s = self.started_s or self.launched_s
        elapsed_s = (self.stopped_s or time.monotonic()) - since_s
        first = self.batches[0] if self.batches else 0
        return RunProgress(self.started_s is not None, elapsed_s, first, self.trained, self.quality)

    def ending(self, outcome: RunOutcome, reason: str = "") -> Ending:
        initialisation_s = run_s = None
        if self.started_s is not None:
            if self.resumed_s is None:
                initialisation_s = self.started_s - self.launched_s
            if self.stopped_s is not None:
                run_s = self.stopped_s - self.started_s
        return Ending(outcome, reason, initialisation_s, run_s, back=self.back)

    def _new_entries(self, log: Path) -> Iterator[Entry]:
        with open_bounded(log, LOG_CAP_BYTES) as file:
            file.seek(self.offset)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self.offset += whole
        for line in content[:whole].decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError):  # the rules report malformed lines later
                yield parse_entry(line.partition(TOKEN)[2], 0)


def supervise(
    process: subprocess.Popen[bytes],
    server: RankServer,
    spec: RunSpec,
    stop: StopRequest,
    observer: Observer,
    peers: NodeServer | None = None,
    resumed_at: int = 0,
    printed: int = 0,
) -> Ending:
    """Wait until the run has ended, or end it; in both cases no process of it remains.

    Meanwhile ``server`` answers the ranks. The log of a resumed run already has ``resumed_at``
    bytes, and the output ``printed`` bytes; its clock has not stopped since run_start, if it had
    started. ``peers`` serves the other nodes, if there are any.
    """
    watch = _Watch(launched_s=time.monotonic(), offset=resumed_at)
    machine = MachineWatch(Path(spec.folder))
    if resumed_at and (elapsed_s := _elapsed_s(spec)) is not None:
        watch.resumed_s = watch.launched_s - elapsed_s
    try:
        verdict = _await_end(process, server, spec, watch, stop, observer, peers)
    finally:
        if peers is not None:
            peers.call_off()
        end_tree(process, spec.path)
        if peers is not None:
            peers.collect(spec)
    refused = watch.problem or server.problem
    ended_well = verdict is None and process.returncode == 0
    if spec.elastic is not None and server.holds_model and not refused:
        # It has stopped, and nothing is lost with a rank or node once its model is held.
        ended_well = verdict is None or verdict[0] is RunOutcome.CRASHED
    if ended_well and watch.stopped_s is not None:
        return watch.ending(RunOutcome.SUCCESS if watch.reached else RunOutcome.TARGET_MISSED)
    output = read_output(spec.output, printed)
    own = explain_crash(output, process.returncode)
    outcome, reason = verdict or (peers and peers.trouble()) or (RunOutcome.CRASHED, own)
    by_itself = verdict is None and not is_lost_peer(own)
    if outcome is RunOutcome.CRASHED and (by_itself or is_lost_peer(reason)):
        reason = own
    if outcome is RunOutcome.CRASHED and not refused and stop.explains(reason):
        assert stop.signal is not None, "it explains the crash"
        outcome, reason = RunOutcome.INTERRUPTED, f"stopped by {stop.signal.name}"
    if outcome is RunOutcome.CRASHED and (failure := machine.failure(process.returncode)):
        outcome, reason = RunOutcome.ENVIRONMENT, failure
    begun = watch.started_s is not None or watch.resumed_s is not None
    if outcome is RunOutcome.CRASHED and not refused and not begun:
        outcome = RunOutcome.UNSTARTED
    ending = watch.ending(outcome, reason)
    out_of_memory = outcome is RunOutcome.ENVIRONMENT and process.returncode == -signal.SIGKILL
    served = server.joined or not begun  # else the trainer writes the log itself
    if not refused and served and (outcome in _LOSSES or out_of_memory):
        nodes = ", ".join(f"node {node}" for node in (peers.lost() if peers else ()))
        lost = nodes or lost_part(own if out_of_memory else reason)
        ending = dataclasses.replace(ending, lost=lost)
    return ending


def _await_end(
    process: subprocess.Popen[bytes],
    server: RankServer,
    spec: RunSpec,
    watch: _Watch,
    stop: StopRequest,
    observer: Observer,
    peers: NodeServer | None,
) -> tuple[RunOutcome, str] | None:
    """Wait for the ranks to end; return outcome and reason if the harness must end the run."""
    limits, ranks = spec.task().limits, spec.parallel_plan().ranks
    observed_s, stopped = 0.0, StoppedProcesses(process.pid)
    while process.poll() is None:
        watch.read(spec, ranks, peers, server.written_s)
        stopped.look((watch.batches, watch.offset))
        if time.monotonic() - observed_s > _OBSERVE_S:
            observer.progress(watch.progress())
            observed_s = time.monotonic()
        if stop.signal is not None:
            return RunOutcome.INTERRUPTED, f"stopped by {stop.signal.name}"
        if watch.problem:
            return RunOutcome.CRASHED, watch.problem
        if verdict := (peers and peers.trouble()) or _over_limit(watch, limits):
            return verdict
        if watch.saved and watch.stopped_s is None and peers:
            watch.back = _node_back(spec, peers)
        if watch.back:
            return RunOutcome.INTERRUPTED, f"{watch.back} is back"
        server.serve(_POLL_S)
        watch.problem = watch.problem or server.problem
    server.serve(0)
    watch.read(spec, ranks, peers, server.written_s)
    problem = watch.problem or server.problem
    return (RunOutcome.CRASHED, problem) if problem else None


def _node_back(spec: RunSpec, peers: NodeServer) -> str:
    """Return the name of a node that is back if the run has an earlier plan for it, else ""."""
    if spec.plan_number and (back := peers.back()):
        under = segment_on(peers.left(), spec, 0)
        if under is not None and under.plan_number < spec.plan_number:
            return f"node {back[0]}"
    return ""


def _elapsed_s(spec: RunSpec) -> float | None:
    """Return the seconds since run_start by the clock of the log; None if it has not started."""
    start = read_log(spec.log).first(keys.RUN_START)
    return None if start is None else (spec.clock.now_ms() - start.time_ms) / 1000


def _over_limit(watch: _Watch, limits: Limits) -> tuple[RunOutcome, str] | None:
    now_s = time.monotonic()
    if watch.started_s is None:
        if now_s - watch.launched_s > limits.initialisation_s:
            reason = f"initialisation took more than {limits.initialisation_s:g} s"
            return RunOutcome.OVER_BUDGET, reason
        return None
    if watch.stopped_s is not None:
        if now_s - watch.stopped_s > limits.ending_s:
            return RunOutcome.OVER_BUDGET, f"ending took more than {limits.ending_s:g} s"
        return None
    if now_s - watch.started_s > limits.run_s:
        return RunOutcome.OVER_BUDGET, f"training took more than {limits.run_s:g} s"
    if silent := watch.silent_ranks(limits.silence_s):
        return RunOutcome.SILENT, _describe_silence(silent, watch.batches, limits.silence_s)
    return None


def _describe_silence(silent: list[int], batches: list[int], silence_s: float) -> str:
    """Return the reason of a silent run, which names the rank that is behind the others."""
    if len(silent) < len(batches):
        ranks = ", ".join(map(str, silent))
        return f"rank {ranks} made no progress for {silence_s:g} s while others did"
    silence = f"no rank made progress for {silence_s:g} s"
    least = min(batches)
    behind = [rank for rank, count in enumerate(batches) if count == least]
    if len(behind) == len(batches):
        return f"{silence}, since batch {least}"
    return f"{silence}: rank {behind[0]} stopped first, at batch {least}"
