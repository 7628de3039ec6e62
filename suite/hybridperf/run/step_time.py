"""Measure the steps of a plan: start its ranks as a run does, and end them after some steps.

Nothing is published, and no result is changed. A thread reads the progress of the ranks, so that
the harness serves them meanwhile as in any run.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from hybridperf.errors import ExitCode, UserError
from hybridperf.log.writer import LogClock
from hybridperf.run.attempt import write_head
from hybridperf.run.ending import RunOutcome, stop_on_signals
from hybridperf.run.files import Scratch
from hybridperf.run.launcher import launch
from hybridperf.run.processes import read_pulse
from hybridperf.run.rank_server import RankServer
from hybridperf.run.request import require_valid
from hybridperf.run.sandbox import mode_of, sandbox_facts
from hybridperf.run.spec import RunSpec
from hybridperf.run.supervise import supervise
from hybridperf.tasks.registry import in_suite

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from hybridperf.run.ending import StopRequest
    from hybridperf.run.request import RunRequest
    from hybridperf.run.supervise import RunProgress

__all__ = ["StepTime", "measure_steps"]

_POLL_S: Final = 0.002
_BEATS_BEFORE: Final = 1  #: beats of `Pulse` before the first step
_UNTIMED: Final = 4  #: steps before the first that counts: readers of samples run ahead of training
_LEAST_S: Final = 0.5  #: seconds; a file's time has a resolution of 4 ms, less than 1 % of that
_SEED: Final = 1


@dataclass(frozen=True, slots=True)
class StepTime:
    """Measured time of training steps."""

    steps: int  #: number of timed steps
    step_s: float  #: mean time of a step, in seconds


def measure_steps(request: RunRequest, steps: int) -> StepTime:
    """Return the time of ``steps`` training steps of ``request``, or more if they are short.

    Raises:
        UserError: exit status 2 if the request is not valid or has too few steps before its first
            evaluation, 4 if the ranks fail, 5 if interrupted.
    """
    require_valid(request)
    task = request.task()
    most = len(task.steps(task.blocks()[0]))
    if most < _UNTIMED + 2:
        expected = f"at least {_UNTIMED + 2} steps before the first evaluation, to time some"
        remedy = "lower training.global_batch_size with --set"
        raise UserError.of("plan.measure", expected, str(most), remedy, path=task.name)
    scratch = Scratch()
    try:
        return _measure(request, scratch.path / "measured", steps, most)
    finally:
        scratch.close()


def _measure(request: RunRequest, folder: Path, steps: int, most: int) -> StepTime:
    folder.mkdir()
    spec = _spec(request, folder)
    spec.work.mkdir()
    write_head(spec)
    spec.write()
    with stop_on_signals() as stop, contextlib.closing(RankServer(spec)) as server:
        ranks = launch(spec, server.address, server.scratch)
        with _StepWatch(spec, stop, steps, most) as watch:
            ending = supervise(ranks, server, spec, stop, watch)
    if watch.measured is not None:
        return watch.measured
    if ending.outcome is RunOutcome.INTERRUPTED:
        raise UserError(f"the measurement of {spec.plan} was stopped.", ExitCode.INTERRUPTED)
    reason = ending.reason or "the run ended before its steps could be timed"
    raise UserError(f"plan {spec.plan!r} could not be measured: {reason}.", ExitCode.ENVIRONMENT)


def _spec(request: RunRequest, folder: Path) -> RunSpec:
    task_path = str(request.task_path.absolute())
    if not in_suite(request.task_path):  # ranks may read nothing but a copy in their folder
        (folder / "task.toml").write_bytes(request.task_path.read_bytes())
        task_path = "task.toml"
    return RunSpec(
        folder=str(folder),
        attempt=0,
        task_path=task_path,
        trainer=request.launched,
        overrides=dict(request.overrides),
        plan=str(request.plan),
        seed=_SEED,
        org=request.org,
        platform="measured",
        division=request.division,
        clock=LogClock(),
        mode=mode_of(request.task(), request.mode),
        sandbox=sandbox_facts(request.mode, request.nodes.count),
    )


class _StepWatch:
    """Times the steps of rank 0 by its progress, then requests a stop of the run."""

    def __init__(self, spec: RunSpec, stop: StopRequest, steps: int, most: int) -> None:
        self.measured: StepTime | None = None
        self._pulse, self._ranks = spec.pulse_of(0), spec.parallel_plan().ranks
        self._stop, self._steps, self._most = stop, steps, most
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def progress(self, progress: RunProgress) -> None:
        """Ignore the supervisor's observations, which are too coarse for steps."""

    def segment(self, attempt: int, story: str) -> None:
        """Ignore further segments, which runs of timed steps do not have."""

    def _watch(self) -> None:
        first: tuple[int, float] | None = None
        latest: StepTime | None = None
        seen = 0
        while not self._ended.wait(_POLL_S):
            begun, at_s = self._last_beat()
            if begun == seen:
                continue
            seen = begun
            if begun > self._most:  # an evaluation has begun
                self.measured = latest
                break
            if first is None:
                first = (begun, at_s) if begun > _UNTIMED else None
                continue
            steps, took_s = begun - first[0], at_s - first[1]
            latest = StepTime(steps, took_s / steps)
            if (steps >= self._steps and took_s >= _LEAST_S) or begun == self._most:
                self.measured = latest
                break
        self._stop.signal = self._stop.signal or signal.SIGTERM

    def _last_beat(self) -> tuple[int, float]:
        """Return the step that rank 0 has begun, and when, in seconds.

        The file says when it was written: a machine that is busy may have it read much later.
        """
        while True:
            written_ns = self._written_ns()
            begun = read_pulse(self._pulse, self._ranks)[0] - _BEATS_BEFORE
            if written_ns == self._written_ns():
                return begun, written_ns / 1e9

    def _written_ns(self) -> int:
        try:
            return self._pulse.lstat().st_mtime_ns
        except OSError:  # not created yet
            return 0
