"""Compute scaling efficiency: the speedup of a result over the ratio of device counts, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.plan import ParallelPlan
from hybridperf.score.convergence import agreed_batch
from hybridperf.score.run_score import known_mean
from hybridperf.score.score import score_result
from hybridperf.score.statistics import Estimate, Interval, estimate, fewest_runs, ratio_interval
from hybridperf.system.catalog import accelerators_per_node, device_count, node_count
from hybridperf.untrusted import DEVICES_CAP, number, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hybridperf.log.log import Log
    from hybridperf.log.package import Package, Result, SealedRun
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore
    from hybridperf.score.validity import Validity

__all__ = [
    "CAUSES",
    "SPEED_METRICS",
    "DevicesInUse",
    "MetricEfficiency",
    "Scaled",
    "Scaling",
    "Side",
    "SpeedMetric",
    "SpeedRatio",
    "Split",
    "devices_in_use",
    "kind_of",
    "metric_words",
    "plan_ranks",
    "rank_seconds",
    "scale",
    "side_of",
    "speed_ratio",
]

SpeedMetric = Literal["time_to_train", "end_to_end_throughput", "steady_throughput"]
SPEED_METRICS: Final[tuple[SpeedMetric, ...]] = get_args(SpeedMetric)
_WORDS: Final[dict[SpeedMetric, str]] = {
    "time_to_train": "time to train",
    "end_to_end_throughput": "end-to-end throughput",
    "steady_throughput": "steady throughput",
}
#: strong: constant global batch size; weak: constant batch size per device
Kind = Literal["strong", "weak", "neither", "unknown"]
Standing = Literal["rated", "oversubscribed", "super-linear", "unknown"]
_SAMPLES: Final = "samples"
#: causes of device time; the last three are the coarser causes of less detailed logs
CAUSES: Final = (
    *("computation", "exposed-communication", "bubble", "imbalance", "input", "evaluation"),
    *("rest", "training", "steady-training", "start-up"),
)
_EQUAL: Final = 1e-9  #: relative tolerance for equal quotients
_RANK_SECONDS: Final = (
    *("waiting_s", "input_s", "compute_s", "exposed_communication_s", "optimizer_s"),
)

#: device-seconds by cause; their sum is the number of devices times the time to train
Breakdown = dict[str, float]


def metric_words(metric: SpeedMetric) -> str:
    """Return the display name of ``metric``."""
    return _WORDS[metric]


@dataclass(frozen=True, slots=True)
class DevicesInUse:
    """The devices that the ranks of a result use, and the devices of its system."""

    used: int
    available: int
    kind: Literal["accelerators", "cores"]

    @property
    def oversubscribed(self) -> bool:
        """Tell whether ranks shared a device, which makes their times invalid for scaling."""
        return self.used > self.available


def devices_in_use(plan: str, description: Mapping[str, object] | None) -> DevicesInUse | None:
    """Return the devices used by a result under ``plan``; None if unknown.

    A rank uses one accelerator, or an equal share of all cores, since the harness distributes the
    cores among the ranks' threads. A result without a plan (MLPerf's) used the whole system.
    """
    description = description or {}
    available = device_count(description)
    nodes, cores = node_count(description), _usable_cores(description)
    on_accelerators = bool(accelerators_per_node(description))
    if not on_accelerators and plan and nodes is not None and cores is not None:
        available = nodes * cores
    ranks = plan_ranks(plan) if plan else available
    if not available or ranks is None:
        return None
    if on_accelerators or not plan:
        return DevicesInUse(ranks, available, "accelerators" if on_accelerators else "cores")
    return DevicesInUse(ranks * max(1, available // ranks), available, "cores")


def plan_ranks(text: str) -> int | None:
    """Return the number of ranks of a plan; None if ``text`` is not a valid plan."""
    try:
        return ParallelPlan.parse(text).ranks if text else None
    except UserError:
        return None


def _usable_cores(description: Mapping[str, object]) -> int | None:
    """Return the number of cores available to the runs, by affinity and quota; None if unknown."""
    machine: object = description
    for key in ("hybridperf", "processor", "usable_cores"):
        machine = machine.get(key) if isinstance(machine, dict) else None
    return whole(machine, 1, DEVICES_CAP)


@dataclass(frozen=True, slots=True)
class Side:
    """A result in a scaling comparison, either the base or a scaled result."""

    package: Package
    score: ResultScore
    devices: DevicesInUse
    batch_size: int | None  #: global; None if the runs differ
    task: tuple[str, ...]  #: version, file hash and data hash
    software: tuple[str, ...]  #: framework, harness hash and trainer hash
    hardware: str  #: model name of the accelerators, or else of the processors
    runs: tuple[RunScore, ...]  #: the runs in means and tests
    breakdowns: tuple[Breakdown | None, ...]  #: device time of each run, as detailed as its log

    @property
    def name(self) -> str:
        """Return the display name of the result, with control characters escaped."""
        return visible(f"{self.package.org} {self.package.system}")

    @property
    def counting(self) -> list[RunScore]:
        """Return the runs in the mean that scores the result."""
        return [run for run in self.runs if run.counts]

    @property
    def steady_by(self) -> str:
        """Return a description of the period over which steady throughput is measured."""
        return (
            "training without evaluations"
            if self.score.plan
            else "first evaluation to last, those in between included"
        )


def side_of(result: Result, validity: Validity | None = None) -> Side:
    """Return the data of ``result``, judged by ``validity``, needed for scaling efficiency.

    Raises:
        UserError: exit status 3 if too few runs for an olympic mean completed, or if the number
            of devices is unknown.
    """
    score = score_result(result, validity)
    place = result.package.name
    if len(score.compared) < (fewest := fewest_runs(score.drops)):
        raise UserError.of(
            "scale.runs",
            f"{fewest} completed runs or more",
            f"{len(score.compared)}" if score.compared else "none",
            "make more runs",
            path=place,
            exit_code=ExitCode.INVALID,
        )
    devices = devices_in_use(score.plan, result.system)
    if devices is None:
        raise UserError.of(
            "scale.devices",
            "a description that says how many accelerators or cores the system has",
            "none" if result.system is None else "no such number",
            "describe the system",
            path=place,
            exit_code=ExitCode.INVALID,
        )
    system, first = result.system or {}, result.runs[0]
    sealed = {run.number: run for run in result.runs}
    return Side(
        package=result.package,
        score=score,
        devices=devices,
        batch_size=agreed_batch([sealed[run.number].log for run in score.compared]),
        task=tuple(
            str(first.fact(*facts) or "")
            for facts in (("task", "version"), ("task", "sha256"), ("data_sha256",))
        ),
        software=(
            visible(str(system.get("framework") or "").strip()),
            *(str(first.fact("code", key) or "") for key in ("suite_sha256", "trainer_sha256")),
        ),
        hardware=_hardware(system),
        runs=tuple(score.compared),
        breakdowns=tuple(
            _device_seconds(sealed[run.number], run, score, devices) for run in score.compared
        ),
    )


def _hardware(system: dict[str, object]) -> str:
    names = [system.get(f"{part}_model_name") for part in ("accelerator", "host_processor")]
    return visible(next((str(name).strip() for name in names if name), ""))


def _device_seconds(
    sealed: SealedRun, run: RunScore, score: ResultScore, devices: DevicesInUse
) -> Breakdown | None:
    """Return the device-seconds of a run by cause, as detailed as its log allows."""
    total_s = devices.used * run.least_s
    ranks = plan_ranks(score.plan)
    if ranks is not None:
        parts = rank_seconds(sealed.log, ranks, run.least_s)
        if parts is not None:
            return {cause: value * devices.used / ranks for cause, value in parts.items()}
    evaluating = _evaluation_s(sealed.log)
    if evaluating is not None:
        evaluation = devices.used * evaluating
        return {"evaluation": evaluation, "training": total_s - evaluation}
    if run.steady_samples_per_s:
        training = devices.used * run.least_samples / run.steady_samples_per_s
        return {"steady-training": training, "start-up": total_s - training}
    return None


def rank_seconds(log: Log, ranks: int, elapsed_s: float) -> Breakdown | None:
    """Return the seconds of all ``ranks`` by cause, with a sum of ``ranks * elapsed_s``.

    Imbalance is idle time of a rank that computed less in a block than the busiest rank; bubble is
    the remaining wait for other pipeline stages; exposed communication is the remaining wait for
    the all-reduce. Returns None unless the log records every rank and evaluation.
    """
    blocks_of_log = [
        entry.value["stages"]
        for entry in log.all(keys.TRACKED_STATS)
        if isinstance(entry.value, dict) and "stages" in entry.value
    ]
    evaluating = _evaluation_s(log)
    if not blocks_of_log or evaluating is None:
        return None
    parts = dict.fromkeys(
        ("computation", "exposed-communication", "bubble", "imbalance", "input"), 0.0
    )
    for block in blocks_of_log:
        stages = _stages(block, ranks)
        if stages is None:
            return None
        most = max(stage["compute_s"] for stage in stages)
        piped = any(stage["stage"] for stage in stages)
        for stage in stages:
            waiting = stage["waiting_s"] if piped else 0.0
            exposed = stage["exposed_communication_s"]
            uneven = min(waiting + exposed, most - stage["compute_s"])
            bubble = max(waiting - uneven, 0.0)
            parts["imbalance"] += uneven
            parts["bubble"] += bubble
            parts["exposed-communication"] += waiting + exposed - uneven - bubble
            parts["computation"] += stage["compute_s"] + stage["optimizer_s"]
            parts["input"] += stage["input_s"]
    parts["evaluation"] = ranks * evaluating
    parts["rest"] = ranks * elapsed_s - math.fsum(parts.values())
    return parts


def _evaluation_s(log: Log) -> float | None:
    """Return the total seconds of evaluation; None if the log lacks the times of one."""
    starts, stops = log.all(keys.EVAL_START), log.all(keys.EVAL_STOP)
    if not starts or len(starts) != len(stops):
        return None
    spans = [stop.time_ms - start.time_ms for start, stop in zip(starts, stops, strict=True)]
    return sum(spans) / 1000 if min(spans) >= 0 else None


def _stages(block: object, ranks: int) -> list[dict[str, float]] | None:
    """Return the seconds recorded in ``block`` for each rank; None if a rank is missing."""
    if not isinstance(block, list) or len(block) != ranks:
        return None
    stages = []
    for stage in block:
        facts = stage if isinstance(stage, dict) else {}
        numbers = {name: number(facts.get(name)) for name in (*_RANK_SECONDS, "stage")}
        known = {name: max(float(one), 0.0) for name, one in numbers.items() if one is not None}
        if len(known) < len(numbers):
            return None
        stages.append(known)
    return stages


@dataclass(frozen=True, slots=True)
class Split:
    """Efficiency by time to train as ``samples * pace``, where ``pace = 1 - sum of losses``.

    ``samples`` is the base's mean samples to target over the result's; ``pace`` is the base's mean
    device-seconds per sample over the result's. Both are over the scored runs.
    """

    samples: float
    pace: float
    losses: tuple[tuple[str, float], ...]  #: cause and share of the result's time; negative: gain

    @property
    def total(self) -> float:
        """Return the efficiency by time to train."""
        return self.samples * self.pace

    def without(self, cause: str, metric: SpeedMetric) -> float:
        """Return the efficiency by ``metric`` with the effect of ``cause`` removed."""
        factor = self.samples if metric == "time_to_train" and cause != _SAMPLES else 1.0
        return factor * (self.pace + dict(self.losses).get(cause, 0.0))

    def gains(self, metric: SpeedMetric) -> list[str]:
        """Return the causes by which ``metric`` improves on the base, the largest first."""
        gains = [(-loss, cause) for cause, loss in self.losses if loss < 0]
        if self.samples > 1 and metric == "time_to_train":
            gains.append((self.samples - 1, _SAMPLES))
        return [cause for _, cause in sorted(gains, reverse=True)]


def _split(base: Side, side: Side) -> Split | None:
    """Split the efficiency of ``side``; None if the time or samples of a scored run are unknown."""
    costs = [_device_seconds_per_sample(each) for each in (base, side)]
    samples = [_mean_samples(each) for each in (base, side)]
    if costs[0] is None or costs[1] is None or not all(samples):
        return None
    parts = [_parts(each) for each in (base, side)]
    losses: list[tuple[str, float]] = []
    if parts[0] is not None and parts[1] is not None and set(parts[0]) == set(parts[1]):
        losses = [
            (cause, (parts[1][cause] - parts[0][cause]) / costs[1])
            for cause in CAUSES
            if cause in parts[0]
        ]
    return Split(samples[0] / samples[1], costs[0] / costs[1], tuple(losses))


def _device_seconds_per_sample(side: Side) -> float | None:
    runs = side.counting
    time_s = math.fsum(run.least_s for run in runs)
    samples = _mean_samples(side)
    if not samples or time_s <= 0 or not _is_finite(side.score.time_s):
        return None
    return side.devices.used * time_s / (samples * len(runs))


def _mean_samples(side: Side) -> float:
    return known_mean(run.least_samples for run in side.counting) or 0.0


def _is_finite(time_s: float | None) -> bool:
    return time_s is not None and math.isfinite(time_s)


def _parts(side: Side) -> Breakdown | None:
    """Return device-seconds per sample by cause; None if a run does not record them."""
    runs = list(zip(side.runs, side.breakdowns, strict=True))
    counting = [parts for run, parts in runs if run.counts]
    known = [parts for parts in counting if parts is not None]
    samples = math.fsum(run.least_samples for run in side.counting)
    if len(known) < len(counting) or len({frozenset(parts) for parts in known}) != 1:
        return None
    return {cause: math.fsum(parts[cause] for parts in known) / samples for cause in known[0]}


@dataclass(frozen=True, slots=True)
class MetricEfficiency:
    """The speedup over the base divided by the ratio of device counts, by one metric."""

    metric: SpeedMetric
    value: float | None
    interval: Interval | None  #: 95 % confidence interval; the upper bound may be infinite
    standing: Standing
    why: str = ""  #: reason if unrated, or explanation if above 100 %
    cause: str = ""  #: the gain that explains an efficiency above 100 %

    @property
    def rated(self) -> bool:
        """Tell whether the efficiency may be published."""
        return self.standing == "rated"

    @property
    def ends(self) -> tuple[float | None, float | None]:
        """Return the interval's bounds for JSON; None if unknown or infinite."""
        if self.interval is None:
            return None, None
        high = self.interval.high
        return self.interval.low, high if math.isfinite(high) else None


@dataclass(frozen=True, slots=True)
class Scaled:
    """The scaling efficiencies of one result relative to its base."""

    base: Side
    side: Side
    kind: Kind
    efficiencies: tuple[MetricEfficiency, ...]  #: one for each of `SPEED_METRICS`
    split: Split | None  #: factors of the efficiency by time to train
    notes: tuple[str, ...]

    @property
    def rated(self) -> dict[SpeedMetric, MetricEfficiency]:
        """Return the efficiencies that may be published, by metric."""
        return {each.metric: each for each in self.efficiencies if each.rated}

    @property
    def causes(self) -> list[str]:
        """Return the gains that explain efficiencies above 100 %."""
        return list(dict.fromkeys(each.cause for each in self.efficiencies if each.cause))


@dataclass(frozen=True, slots=True)
class Scaling:
    """The scaling of one task over several device counts."""

    base: Side
    results: tuple[Scaled, ...]  #: sorted by number of devices


def scale(sides: Sequence[Side], *, kind: Literal["strong", "weak"] | None = None) -> Scaling:
    """Compare ``sides`` with their base, the first one with the fewest devices.

    ``kind`` is the required kind of scaling; None accepts either.

    Raises:
        UserError: exit status 2 if there are fewer than two results, if they differ in task,
            target or version, if one has as many devices as the base, or if they are not of
            ``kind``.
    """
    if len(sides) < 2:
        raise _error("results on two numbers of devices or more", f"{len(sides)}", "name another")
    base = min(sides, key=lambda side: side.devices.used)  # ties: the first
    others = sorted(
        (side for side in sides if side is not base), key=lambda side: side.devices.used
    )
    for side in others:
        _require_alike(base, side)
    results = tuple(_scaled(base, side) for side in others)
    for scaled in results:
        if kind is not None and scaled.kind != kind:
            expected = "one global batch" if kind == "strong" else "one batch for each device"
            found = " and ".join(_batch(each) for each in (base, scaled.side))
            remedy = f"drop --{kind}, or make results that differ in devices alone"
            raise _error(f"{expected}, as --{kind} asks for", found, remedy, scaled.side)
    return Scaling(base, results)


def kind_of(base: Side, side: Side) -> Kind:
    """Return whether ``side`` is the strong or weak scaling of ``base``."""
    if base.batch_size is None or side.batch_size is None:
        return "unknown"
    if base.batch_size == side.batch_size:
        return "strong"
    each = [one.batch_size / one.devices.used for one in (base, side) if one.batch_size]
    return "weak" if abs(each[1] / each[0] - 1) < _EQUAL else "neither"


def _scaled(base: Side, side: Side) -> Scaled:
    split = _split(base, side)
    efficiencies = tuple(_efficiency(base, side, metric, split) for metric in SPEED_METRICS)
    return Scaled(base, side, kind_of(base, side), efficiencies, split, tuple(_notes(base, side)))


def _efficiency(
    base: Side, side: Side, metric: SpeedMetric, split: Split | None
) -> MetricEfficiency:
    ratio = speed_ratio(base, side, metric)
    if ratio is None:
        place = (base, side)[_speed(base, metric) is not None].name
        why = f"the logs of {place} do not record it"
        return MetricEfficiency(metric, None, None, "unknown", why)
    more = side.devices.used / base.devices.used
    value, interval = ratio.value / more, ratio.interval
    if interval is not None:
        interval = Interval(interval.low / more, interval.high / more)
    for each in (base, side):
        if each.devices.oversubscribed:
            why = f"{each.devices.used} ranks share {each.devices.available} {each.devices.kind}"
            return MetricEfficiency(metric, value, interval, "oversubscribed", why)
    if value <= 1 or (interval is not None and interval.low <= 1):
        return MetricEfficiency(metric, value, interval, "rated")
    gains = split.gains(metric) if split else []
    for cause in gains:
        if split is not None and split.without(cause, metric) <= 1 + _EQUAL:
            why = f"super-linear by {cause}"
            return MetricEfficiency(metric, value, interval, "rated", why, cause)
    by = f"gains by {', '.join(gains)}, none of which explains it" if gains else "no gain"
    return MetricEfficiency(metric, value, interval, "super-linear", f"the split shows {by}")


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """The speed of a result over the speed of its base, by one metric."""

    value: float
    interval: Interval | None  #: 95 % confidence interval; the upper bound may be infinite


def speed_ratio(base: Side, side: Side, metric: SpeedMetric) -> SpeedRatio | None:
    """Return the speed of ``side`` over the speed of ``base`` by ``metric``.

    Returns None if the logs of one of them do not record it.
    """
    speeds = [_speed(each, metric) for each in (base, side)]
    if speeds[0] is None or speeds[1] is None:
        return None
    return SpeedRatio(speeds[1] / speeds[0], _ratio_of_speeds(base, side, metric))


def _speed(side: Side, metric: SpeedMetric) -> float | None:
    """Return the speed of a result by ``metric``; None if unknown or zero.

    Time to train: reciprocal of the time that scores the result, in 1/s. End-to-end throughput:
    samples over time to train, mean over the scored runs, in samples/s. Steady throughput: the
    result's, in samples/s.
    """
    if metric == "time_to_train":
        time_s = side.score.time_s
        value = 1 / time_s if time_s and time_s > 0 else 0.0
    elif metric == "end_to_end_throughput":
        value = known_mean(run.throughput_samples_per_s for run in side.counting) or 0.0
    else:
        value = side.score.steady_samples_per_s or 0.0
    return value if 0 < value < math.inf else None


def _ratio_of_speeds(base: Side, other: Side, metric: SpeedMetric) -> Interval | None:
    """Return the 95 % interval of the speed of ``other`` over the speed of ``base``."""
    if metric != "time_to_train":
        one, two = (_rate(each, metric) for each in (base, other))
        return ratio_interval(one, two)
    times = (_time(each) for each in (other, base))
    if (interval := ratio_interval(*times)) is None:
        return None
    # Where runs missed, a mean time is a lower bound.
    low = 0.0 if other.score.missed else interval.low
    return Interval(low, math.inf if base.score.missed else interval.high)


def _time(side: Side) -> Estimate | None:
    if side.score.own:
        return estimate([run.least_s for run in side.runs])
    return estimate([run.time_to_train_s for run in side.runs], side.score.drops)


def _rate(side: Side, metric: SpeedMetric) -> Estimate | None:
    """Return the mean rate that `_speed` defines, with the variance of the rates of all runs."""
    if metric == "steady_throughput":
        return estimate([run.steady_samples_per_s or 0.0 for run in side.runs])
    every = estimate([run.throughput_samples_per_s or 0.0 for run in side.runs])
    count = len(side.counting)
    if every is None or count < 2:
        return None
    mean = known_mean(run.throughput_samples_per_s for run in side.counting) or 0.0
    # Of MLPerf's results fewer runs are in the mean than show how rates vary.
    return Estimate(mean, every.variance * every.values / count, count - 1, every.values)


def _require_alike(base: Side, side: Side) -> None:
    one, other = base.score, side.score
    if one.benchmark != other.benchmark:
        expected = f"a result of {one.benchmark!r:.80}, as the base is"
        raise _error(expected, f"one of {other.benchmark!r:.80}", "scale results of one task", side)
    if one.target != other.target:
        expected = f"the quality target {one.target}, as the base has"
        raise _error(expected, f"{other.target}", "scale results of one target", side)
    if base.task != side.task:
        expected = "the version of the task, and the data, that the base has"
        raise _error(expected, "another", "scale results of one version", side)
    if base.devices.used == side.devices.used:
        expected = f"more devices than the {base.devices.used} of the base {base.name}"
        remedy = "'hybridperf compare' compares equals"
        raise _error(expected, f"{side.devices.used}", remedy, side)
    if base.devices.kind != side.devices.kind:
        expected = f"{base.devices.kind}, as in the base"
        raise _error(expected, side.devices.kind, "scale one kind", side)


def _error(expected: str, found: str, remedy: str, side: Side | None = None) -> UserError:
    return UserError.of(
        "scale.results", expected, found, remedy, path=side.package.name if side else ""
    )


def _notes(base: Side, side: Side) -> Iterator[str]:
    if base.software[0] != side.software[0]:
        software = [each.software[0] or "unknown" for each in (base, side)]
        yield f"other software: {', then '.join(software)}"
    if base.software[1:] != side.software[1:]:
        yield "other code of the harness or the trainer"
    if base.hardware != side.hardware:
        yield f"other devices: {base.hardware or 'unknown'}, then {side.hardware or 'unknown'}"
    if base.score.division != side.score.division:
        divisions = (base.score.division, side.score.division)
        yield f"other division: {' and '.join(each or 'unknown' for each in divisions)}"
    if kind_of(base, side) == "neither":
        yield f"neither strong nor weak scaling: {_batch(base)}, then {_batch(side)}"


def _batch(side: Side) -> str:
    if side.batch_size is None:
        return "an unknown batch"
    each = side.batch_size / side.devices.used
    return f"a batch of {side.batch_size}, {each:g} for each of {side.devices.used} devices"
