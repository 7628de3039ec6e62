"""Compute the measurements of one run from its log."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING, Final, Literal

from hybridperf.log import keys
from hybridperf.log.segments import plans_of
from hybridperf.score.convergence import samples_at, samples_of
from hybridperf.score.projection import StepComparison, compare_steps
from hybridperf.system.energy import Energy
from hybridperf.system.noise import Noise
from hybridperf.untrusted import COUNT_CAP, DEVICES_CAP, NUMBER_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hybridperf.log.log import Entry, Log
    from hybridperf.log.package import SealedRun

__all__ = [
    "CurvePoint",
    "Measurements",
    "RunScore",
    "known_mean",
    "mean_measurements",
    "score_run",
    "stopped_well",
]

Completion = Literal["reached", "missed", "ended"]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation of a run."""

    time_s: float  #: seconds since run_start
    epoch: int | None  #: last epoch before the evaluation; None if the schedule counts samples
    samples: int  #: samples trained on before the evaluation
    quality: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The measurements of a run, or their means over the scored runs of a result; None if unknown.

    To measure something else, add a field, compute it in `score_run`, and show it by a `Metric`.
    """

    throughput_samples_per_s: float | None  #: end to end: samples over time to train
    #: ours: while training, evaluations excluded; MLPerf's: from the first evaluation to the last
    steady_samples_per_s: float | None
    real_tokens_per_s: float | None  #: while training, without padding, as the trainer counts
    bubble: float | None  #: share of device time spent waiting for other pipeline stages
    exposed_communication: float | None  #: share of device time in all-reduce waits
    loader_samples_per_s: float | None  #: maximum of the data loaders of all ranks
    compute_samples_per_s: float | None  #: maximum of training with free input
    joules: float | None  #: from run_start to the target, of all devices of all nodes
    samples_per_joule: float | None  #: from run_start to run_stop


#: their mean is unknown unless they are known of every run
_OF_EVERY_RUN: Final = frozenset({"joules", "samples_per_joule"})


def mean_measurements(runs: Sequence[Measurements]) -> dict[str, float | None]:
    """Return the mean of each field of `Measurements` over the ``runs`` where it is known.

    Energy must be known of all: where a counter is missing, no mean stands for it.
    """
    values = {each.name: [getattr(run, each.name) for run in runs] for each in fields(Measurements)}
    return {
        name: None if name in _OF_EVERY_RUN and None in of_runs else known_mean(of_runs)
        for name, of_runs in values.items()
    }


@dataclass(frozen=True, slots=True)
class RunScore(Measurements):
    """The measurements of one attempt."""

    number: int
    completion: Completion  #: reached or missed the target, or ended externally
    outcome: str  #: outcome in the manifest, such as ``interrupted``
    invalid: str  #: error of the log by the round's ruleset; "" if none is known
    seed: int | None
    began_ms: int  #: first time stamp, which orders the runs; 0 if unknown
    time_to_train_s: float  #: run_start to run_stop; infinite if the target was missed
    elapsed_s: float  #: run_start to run_stop, or else to the last log line; 0 if unknown
    samples_to_target: int
    curve: tuple[CurvePoint, ...]
    beside_projection: StepComparison | None  #: its steps compared with the projected step
    busy: str = ""  #: why the machine was busy before or during the run; "" if it was not
    plans: tuple[str, ...] = ()  #: plans of its segments, in order
    retries: int = 0  #: earlier attempts whose logs old harnesses did not keep
    in_window: bool = False  #: whether the run is in the window of MLPerf's score
    counts: bool = False  #: whether the run is in the mean that scores the result
    #: time to train in means and tests; of a run that missed the target, a lower bound
    least_s: float = math.inf
    least_samples: int = 0  #: samples to target in means; of a run that missed, a lower bound


def score_run(
    run: SealedRun,
    benchmark: str,
    key: str,
    edition: str = "",
    error: str | None = None,
) -> RunScore:
    """Score one attempt at ``benchmark``; ``key`` counts its samples.

    ``error`` is the error of its log by the ruleset of the round ``edition``, "" for a valid log
    and None if it was not judged: a valid log reached the target, an invalid log did not.
    """
    log = run.log
    start, stop = log.first(keys.RUN_START), log.first(keys.RUN_STOP)
    cut = start is None or stop is None
    # Published MLPerf results have neither manifests nor ended attempts: a truncated log there is
    # a run that missed the target (MLPerf Training rules, section 12.1).
    ended = log.first(keys.ENDING) is not None or (cut and run.manifest is not None)
    reached = not cut and (stopped_well(log) if error is None else not error)
    completion: Completion = "ended" if ended else "reached" if reached else "missed"
    curve = tuple(_curve(log, start, benchmark, key, edition)) if start else ()
    elapsed_s = (stop.time_ms - start.time_ms) / 1000 if start and stop else math.inf
    samples = samples_of(log, benchmark, key, edition) or 0
    steady = (
        _rate_of_blocks(log, curve)
        if log.first(keys.PLAN)
        else _rate_between_evaluations(log, samples, curve)
    )
    joules = None if ended else _joules(log)
    plans = plans_of(log)
    began = start or (log.entries[0] if log.entries else None)
    return RunScore(
        number=run.number,
        completion=completion,
        outcome=str(run.fact("outcome") or completion),
        invalid=error or "",
        seed=whole(log.value(keys.SEED)),
        began_ms=began.time_ms if began else 0,
        time_to_train_s=elapsed_s if completion == "reached" else math.inf,
        elapsed_s=_elapsed_s(log, start, stop),
        samples_to_target=samples,
        curve=curve,
        throughput_samples_per_s=samples / elapsed_s if elapsed_s > 0 else 0.0,
        steady_samples_per_s=steady,
        real_tokens_per_s=_real_token_rate(log, curve, steady),
        bubble=known_mean(value for _, value in _tracked(log, "bubble")),
        exposed_communication=known_mean(
            value for _, value in _tracked(log, "exposed_communication")
        ),
        loader_samples_per_s=_tracked_rate(log, "loader_samples_per_s", curve),
        compute_samples_per_s=_tracked_rate(log, "compute_samples_per_s", curve),
        joules=joules if completion == "reached" else None,
        samples_per_joule=samples / joules if joules else None,
        beside_projection=compare_steps(log, steady) if len(plans) == 1 else None,
        busy=", ".join(_busy_reasons(log)),
        plans=plans,
        retries=whole(run.fact("retries"), 0, COUNT_CAP) or 0,
    )


def stopped_well(log: Log) -> bool:
    """Tell whether ``log`` states that its run reached the target."""
    stop = log.first(keys.RUN_STOP)
    return stop is not None and stop.metadata.get("status") == "success"


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the ``values`` that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _elapsed_s(log: Log, start: Entry | None, stop: Entry | None) -> float:
    if start is None:
        return 0.0
    return max(0.0, ((stop or log.entries[-1]).time_ms - start.time_ms) / 1000)


def _curve(log: Log, start: Entry, benchmark: str, key: str, edition: str) -> Iterable[CurvePoint]:
    for entry in log.all(keys.EVAL_ACCURACY):
        epoch, quality = whole(entry.metadata.get("epoch_num")), number(entry.value)
        counted = keys.progress_of(entry.metadata)
        samples = samples_at(log, benchmark, key, entry, edition)
        if counted is not None and quality is not None and samples is not None:
            time_s = (entry.time_ms - start.time_ms) / 1000
            yield CurvePoint(time_s, epoch, samples, float(quality))


def _busy_reasons(log: Log) -> list[str]:
    """Return why the machine was busy during the run, or else right before it."""
    noises = {
        str(entry.metadata.get("interval")): Noise.from_table(entry.value)
        for entry in log.all(keys.NOISE)
    }
    reasons = (noises[name].reasons() for name in ("run", "before") if name in noises)
    return next(filter(None, reasons), [])


def _joules(log: Log) -> float | None:
    """Return the energy from run_start to run_stop; None if any is missing.

    Every node logs every block. Nobody counted between the end of a run and its resumption. A
    counter that stands still for a whole run counts nothing.
    """
    blocks = {keys.progress_of(entry.metadata) for entry in log.all(keys.EVAL_ACCURACY)}
    entries = log.all(keys.ENERGY)
    logged = set[tuple[int | None, int | None]]()
    joules = defaultdict[tuple[int | None, str], float](float)
    for entry in entries:
        energy = Energy.from_table(entry.value)
        if energy is None or energy.missing or not energy.joules:
            return None
        node = whole(entry.metadata.get("node"), 0)
        logged.add((node, keys.progress_of(entry.metadata)))
        for devices in energy.joules.values():
            for device, value in devices.items():
                joules[node, device] += value
    nodes = whole(entries[0].metadata.get("nodes"), 1, DEVICES_CAP) if entries else None
    complete = (
        nodes is not None
        and len(entries) == len(logged) == nodes * len(blocks)
        and {node for node, _ in logged} == set(range(nodes))
        and {progress for _, progress in logged} == blocks
        and log.first(keys.RESUMED) is None
    )
    return math.fsum(joules.values()) if complete and all(joules.values()) else None


def _tracked_rate(log: Log, name: str, curve: Sequence[CurvePoint]) -> float | None:
    """Return the mean rate over the blocks that logged ``name``, in samples per second."""
    samples_of = _samples_of_blocks(curve)
    known = [
        (samples, rate)
        for last, rate in _tracked(log, name)
        if rate > 1 / NUMBER_CAP and (samples := samples_of.get(last, 0))
    ]
    seconds = math.fsum(samples / rate for samples, rate in known)
    return sum(samples for samples, _ in known) / seconds if known else None


def _real_token_rate(
    log: Log, curve: Sequence[CurvePoint], samples_per_s: float | None
) -> float | None:
    """Return the tokens without padding per second of training; None if they are unknown."""
    samples_of = _samples_of_blocks(curve)
    counted = [
        (tokens, samples)
        for last, tokens in _tracked(log, "real_tokens")
        if (samples := samples_of.get(last, 0))
    ]
    if not counted or samples_per_s is None:
        return None
    total, of_samples = (math.fsum(each) for each in zip(*counted, strict=True))
    return samples_per_s * total / of_samples


def _samples_of_blocks(curve: Sequence[CurvePoint]) -> dict[int, int]:
    """Return the samples of each block by its last epoch or, without one, its last sample."""
    before = itertools.pairwise([0, *(point.samples for point in curve)])
    return {
        point.samples if point.epoch is None else point.epoch: max(0, last - first)
        for point, (first, last) in zip(curve, before, strict=True)
    }


def _rate_of_blocks(log: Log, curve: Sequence[CurvePoint]) -> float | None:
    """Return samples per second of the blocks' training, by the log's clock; None if unknown.

    The trainer's own statistics are not used. A block begins again where its run was resumed: then
    its end states how many samples were left.
    """
    samples_of = _samples_of_blocks(curve)
    samples, elapsed_ms = 0, 0
    start: Entry | None = None
    left = _samples_left(log) if log.first(keys.RESUMED) else None
    for entry in log.entries:
        if entry.key == keys.BLOCK_START:
            start = entry
        elif entry.key == keys.EVAL_START and start is not None:
            own = samples_of.get(keys.progress_of(entry.metadata) or 0, 0)
            own = own if left is None else left.get(start.line, 0)
            if own and entry.time_ms > start.time_ms:
                samples += own
                elapsed_ms += entry.time_ms - start.time_ms
            start = None
    return 1000 * samples / elapsed_ms if elapsed_ms else None


def _samples_left(log: Log) -> dict[int, int]:
    """Return the samples that blocks state at their end, by the line of their start."""
    left, line = dict[int, int](), 0
    for entry in log.entries:
        if entry.key == keys.BLOCK_START:
            line = entry.line
        elif entry.key == keys.BLOCK_STOP:
            left[line] = whole(entry.metadata.get("samples"), 0, COUNT_CAP) or 0
    return left


def _rate_between_evaluations(log: Log, samples: int, curve: Sequence[CurvePoint]) -> float | None:
    """Return samples per second from the first to the last evaluation; None if unknown.

    Evaluations in between are included, since most logs do not record their durations. If ``curve``
    is incomplete, evaluations are assumed to be equally spaced over ``samples``. Submitters' own
    throughput statistics are not used, since their definitions differ.
    """
    evaluations = log.all(keys.EVAL_ACCURACY)
    count = len(evaluations)
    if count < 2:
        return None
    between_s = (evaluations[-1].time_ms - evaluations[0].time_ms) / 1000
    trained: float = samples * (count - 1) / count
    if len(curve) == count:
        trained = curve[-1].samples - curve[0].samples
    return trained / between_s if between_s > 0 and trained > 0 else None


def _tracked(log: Log, name: str) -> list[tuple[int, float]]:
    """Return the (epoch or samples, value) pairs of the tracked statistic ``name``."""
    values = (
        (keys.progress_of(entry.metadata) or 0, number(entry.value.get(name)))
        for entry in log.all(keys.TRACKED_STATS)
        if isinstance(entry.value, dict)
    )
    return [(last, float(value)) for last, value in values if value is not None]
