"""Turn the log of one run into numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from suite.logs import keys
from suite.scores.convergence import CountKey, samples_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from suite.logs.log import Entry, Log
    from suite.logs.package import SealedRun

__all__ = ["CurvePoint", "RunScore", "known_mean", "score_run"]

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
    began_ms: int  #: the first time stamp, by which runs are put in order; 0 without one
    time_to_train_s: float  #: run_start to run_stop; infinite where the target was not reached
    samples_to_target: int
    curve: tuple[CurvePoint, ...]
    throughput_samples_per_s: float  #: end to end: samples over time to train
    steady_samples_per_s: float  #: while training only; 0 where unknown
    bubble: float | None  #: share of device time spent waiting for other stages
    exposed_communication: float | None  #: share of device time spent waiting for an all-reduce
    loader_samples_per_s: float | None  #: what the loaders of all ranks could deliver
    appetite_samples_per_s: float | None  #: what training could consume if input cost nothing
    in_window: bool = False  #: one of the runs that the result is made of
    counts: bool = False  #: in the olympic mean


def score_run(run: SealedRun, benchmark: str, key: CountKey) -> RunScore:
    """Score one attempt at ``benchmark``, whose samples are counted by ``key``."""
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
    began = start or (log.entries[0] if log.entries else None)
    return RunScore(
        number=run.number,
        completion=completion,
        outcome=str(run.fact("outcome") or completion),
        seed=_integer(log.value(keys.SEED)),
        began_ms=began.time_ms if began else 0,
        time_to_train_s=elapsed_s if completion == "reached" else math.inf,
        samples_to_target=samples,
        curve=curve,
        throughput_samples_per_s=samples / elapsed_s if elapsed_s > 0 else 0.0,
        steady_samples_per_s=_tracked_rate(log, "throughput", curve) or 0.0
        if log.first(keys.PLAN)
        else _rate_between_evaluations(log, samples, elapsed_s),
        bubble=known_mean(value for _, value in _tracked(log, "bubble")),
        exposed_communication=known_mean(
            value for _, value in _tracked(log, "exposed_communication")
        ),
        loader_samples_per_s=_tracked_rate(log, "loader_samples_per_s", curve),
        appetite_samples_per_s=_tracked_rate(log, "appetite_samples_per_s", curve),
    )


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of those ``values`` that are known; None where none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _curve(log: Log, start: Entry, benchmark: str, key: CountKey) -> Iterable[CurvePoint]:
    for entry in log.all(keys.EVAL_ACCURACY):
        epoch, quality = entry.metadata.get("epoch_num"), entry.value
        samples = samples_at(log, benchmark, key, entry)
        if isinstance(epoch, int) and isinstance(quality, int | float) and samples is not None:
            time_s = (entry.time_ms - start.time_ms) / 1000
            yield CurvePoint(time_s, epoch, samples, float(quality))


def _tracked_rate(log: Log, name: str, curve: Sequence[CurvePoint]) -> float | None:
    """Return samples over time, of those blocks whose rate was tracked."""
    before = itertools.pairwise([0, *(point.samples for point in curve)])
    samples_of = {
        point.epoch: max(0, last - first)
        for point, (first, last) in zip(curve, before, strict=True)
    }
    known = [
        (samples, rate)
        for epoch, rate in _tracked(log, name)
        if rate > 1 / _MOST and (samples := samples_of.get(epoch, 0))
    ]
    seconds = math.fsum(samples / rate for samples, rate in known)
    return sum(samples for samples, _ in known) / seconds if known else None


def _rate_between_evaluations(log: Log, samples: int, elapsed_s: float) -> float:
    """Return samples over the time without evaluations, where a log says when those were.

    What MLPerf's submitters track under a name of their own is not comparable.
    """
    starts, stops = log.all(keys.EVAL_START), log.all(keys.EVAL_STOP)
    if not starts or len(starts) != len(stops) or math.isinf(elapsed_s):
        return 0.0
    spans = (stop.time_ms - start.time_ms for start, stop in zip(starts, stops, strict=True))
    training_s = elapsed_s - sum(spans) / 1000
    return samples / training_s if 0 < training_s <= elapsed_s else 0.0


def _tracked(log: Log, name: str) -> list[tuple[int, float]]:
    """Return what was tracked by ``name``, each with the epoch after which it was."""
    values = (
        (_integer(entry.metadata.get("epoch_num")) or 0, entry.value.get(name))
        for entry in log.all(keys.TRACKED_STATS)
        if isinstance(entry.value, dict)
    )
    return [
        (epoch, float(value))
        for epoch, value in values
        if isinstance(value, int | float) and abs(value) < _MOST
    ]


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
