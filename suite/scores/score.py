"""Turn the logs of a result into numbers."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from suite.logs import keys
from suite.scores.convergence import CountKey, benchmark_of, count_key, samples_at
from suite.scores.interval import Interval, olympic_interval
from suite.scores.olympic import olympic_mean, scored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from suite.logs.package import Result, SealedRun
    from suite.logs.reader import Entry, Log

__all__ = ["CurvePoint", "ResultScore", "RunScore", "score_result"]

Completion = Literal["reached", "missed", "ended"]
_MOST: Final = 1e15  #: more was not measured, and would make sums overflow


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation of a run."""

    time_s: float  #: since run_start
    epoch: int
    samples: int  #: trained on so far
    quality: float


@dataclass(frozen=True, slots=True)
class RunScore:
    """One attempt in numbers."""

    number: int
    completion: Completion  #: reached the target, missed it, or was ended from outside
    outcome: str  #: the manifest's word for it, such as ``interrupted``
    seed: int | None
    time_to_train_s: float  #: run_start to run_stop; infinite where the target was not reached
    samples_to_target: int
    curve: tuple[CurvePoint, ...]
    throughput_samples_per_s: float  #: end to end: samples over time to train
    steady_samples_per_s: float  #: while training only
    bubble: float | None  #: share of device time spent waiting for other stages
    exposed_communication: float | None  #: share of device time spent waiting for an all-reduce
    counts: bool = False  #: in the olympic mean


@dataclass(frozen=True, slots=True)
class ResultScore:
    """A result in numbers."""

    org: str
    system: str
    benchmark: str  #: the task's name, such as ``resnet/laptop``
    division: str
    plan: str
    target: float | None
    required_runs: int | None
    runs: tuple[RunScore, ...]  #: every attempt, by number
    olympic_mean_s: float | None  #: None for fewer than three completed runs
    interval_s: Interval | None
    samples_to_target: float | None  #: mean over the runs that count
    throughput_samples_per_s: float | None  #: end to end, mean over the runs that count
    steady_samples_per_s: float | None  #: mean over the runs that count
    bubble: float | None  #: mean over the runs that count
    exposed_communication: float | None  #: mean over the runs that count

    @property
    def completed(self) -> list[RunScore]:
        """Return the runs that ended by themselves."""
        return [run for run in self.runs if run.completion != "ended"]


def score_result(result: Result) -> ResultScore:
    """Score every attempt of ``result`` and the result as a whole."""
    first = result.runs[0] if result.runs else None
    benchmark = benchmark_of(first.log, result.package.benchmark) if first else ""
    key = count_key([run.log for run in result.runs], benchmark)
    runs = [_score_run(run, benchmark, key) for run in result.runs]
    completed = [index for index, run in enumerate(runs) if run.completion != "ended"]
    times = [runs[index].time_to_train_s for index in completed]
    counting: list[RunScore] = []
    if len(completed) >= 3:
        for place in scored(times):
            index = completed[place]
            runs[index] = dataclasses.replace(runs[index], counts=True)
            counting.append(runs[index])
    mean_s = olympic_mean(times) if counting else None
    target = first.fact("task", "target") if first else None
    required = first.fact("task", "runs") if first else None
    return ResultScore(
        org=result.package.org,
        system=result.package.system,
        benchmark=benchmark,
        division=str(first.log.value(keys.SUBMISSION_DIVISION) or "") if first else "",
        plan=str(first.log.value(keys.PLAN) or "") if first else "",
        target=float(target) if isinstance(target, int | float) else None,
        required_runs=required if isinstance(required, int) else None,
        runs=tuple(runs),
        olympic_mean_s=mean_s,
        interval_s=olympic_interval(times),
        samples_to_target=_mean(run.samples_to_target for run in counting),
        throughput_samples_per_s=_mean(run.throughput_samples_per_s for run in counting),
        steady_samples_per_s=_mean(run.steady_samples_per_s for run in counting),
        bubble=_mean(run.bubble for run in counting),
        exposed_communication=_mean(run.exposed_communication for run in counting),
    )


def _score_run(run: SealedRun, benchmark: str, key: CountKey) -> RunScore:
    log = run.log
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    status = stop.metadata.get("status") if stop else None
    cut = start is None or stop is None
    # What MLPerf publishes has no manifest and no ended attempts: a log that is cut off there is
    # of a run that did not reach its target (MLPerf Training rules, section 12.1).
    ended = log.first(keys.ENDING) is not None or (cut and run.manifest is not None)
    reached = status == "success" and not cut
    completion: Completion = "ended" if ended else "reached" if reached else "missed"
    curve = tuple(_curve(log, start, benchmark, key)) if start else ()
    elapsed_s = (stop.time_ms - start.time_ms) / 1000 if start and stop else math.inf
    samples = curve[-1].samples if curve else 0
    return RunScore(
        number=run.number,
        completion=completion,
        outcome=str(run.fact("outcome") or completion),
        seed=_integer(log.value(keys.SEED)),
        time_to_train_s=elapsed_s if completion == "reached" else math.inf,
        samples_to_target=samples,
        curve=curve,
        throughput_samples_per_s=samples / elapsed_s if elapsed_s > 0 else 0.0,
        steady_samples_per_s=_steady_rate(log),
        bubble=_share(log, "bubble"),
        exposed_communication=_share(log, "exposed_communication"),
    )


def _curve(log: Log, start: Entry, benchmark: str, key: CountKey) -> Iterable[CurvePoint]:
    for entry in log.all(keys.EVAL_ACCURACY):
        epoch, quality = entry.metadata.get("epoch_num"), entry.value
        samples = samples_at(log, benchmark, key, entry)
        if isinstance(epoch, int) and isinstance(quality, int | float) and samples is not None:
            time_s = (entry.time_ms - start.time_ms) / 1000
            yield CurvePoint(time_s, epoch, samples, float(quality))


def _steady_rate(log: Log) -> float:
    """Return samples over training time: blocks are equally long, so the harmonic mean of rates."""
    rates = [rate for rate in _tracked(log, "throughput") if rate > 1 / _MOST]
    return len(rates) / math.fsum(1 / rate for rate in rates) if rates else 0.0


def _share(log: Log, name: str) -> float | None:
    return _mean(_tracked(log, name))


def _tracked(log: Log, name: str) -> list[float]:
    values = (
        entry.value.get(name)
        for entry in log.all(keys.TRACKED_STATS)
        if isinstance(entry.value, dict)
    )
    return [
        float(value) for value in values if isinstance(value, int | float) and abs(value) < _MOST
    ]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
