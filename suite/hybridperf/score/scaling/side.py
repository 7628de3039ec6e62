"""Extract the devices, software and runs of a result for scaling efficiency."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hybridperf.errors import ExitCode, UserError
from hybridperf.findings import Finding, visible
from hybridperf.log import keys
from hybridperf.plan import ParallelPlan
from hybridperf.score.olympic import fewest_runs
from hybridperf.score.scaling.breakdown import evaluation_s, rank_seconds, rate_between_evaluations
from hybridperf.score.score import score_result
from hybridperf.system.catalog import accelerators_per_node, device_count, node_count
from hybridperf.untrusted import COUNT_CAP, DEVICES_CAP, whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hybridperf.log.package import Package, Result, SealedRun
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore

__all__ = ["Devices", "ScalingRun", "Side", "devices_used", "plan_ranks", "side_of"]


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices used and available for a result."""

    used: int
    available: int
    kind: Literal["accelerators", "cores"]

    @property
    def oversubscribed(self) -> bool:
        """Tell whether ranks shared a device, which makes their times invalid for scaling."""
        return self.used > self.available


def devices_used(plan: str, description: Mapping[str, object] | None) -> Devices | None:
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
        return Devices(ranks, available, "accelerators" if on_accelerators else "cores")
    return Devices(ranks * max(1, available // ranks), available, "cores")


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
class ScalingRun:
    """A run in the scoring window of its result."""

    time_s: float  #: time to train; infinite if the target was missed
    samples: int
    end_to_end: float  #: samples per second
    steady: float | None  #: samples per second
    counts: bool  #: in the olympic mean
    device_seconds: dict[str, float] | None  #: by cause, as detailed as the log


@dataclass(frozen=True, slots=True)
class Side:
    """A result in a scaling comparison, either the base or a scaled one."""

    package: Package
    score: ResultScore
    devices: Devices
    batch_size: int | None  #: global; None if the runs differ
    task: tuple[str, ...]  #: version, file hash and data hash
    software: tuple[str, ...]  #: framework, harness hash and trainer hash
    hardware: str
    runs: tuple[ScalingRun, ...]

    @property
    def name(self) -> str:
        """Return the display name of the result, with control characters escaped."""
        return visible(f"{self.package.org} {self.package.system}")

    @property
    def counting(self) -> list[ScalingRun]:
        """Return the runs in the olympic mean."""
        return [run for run in self.runs if run.counts]

    @property
    def steady_by(self) -> str:
        """Return a description of the period over which steady throughput is measured."""
        return (
            "training without evaluations"
            if self.score.plan
            else "first evaluation to last, those in between included"
        )


def side_of(result: Result) -> Side:
    """Return the data of ``result`` needed for scaling efficiency.

    Raises:
        UserError: exit status 3 if too few runs for an olympic mean completed, or if the number
            of devices is unknown.
    """
    score = score_result(result)
    place = result.package.name
    if len(score.window) < (fewest := fewest_runs(score.drops)):
        found = f"{len(score.window)}" if score.window else "none"
        expected = f"{fewest} completed runs or more, which make an olympic mean"
        finding = Finding("scale.runs", expected, found, "make more runs", place)
        raise UserError(finding, ExitCode.INVALID)
    devices = devices_used(score.plan, result.system)
    if devices is None:
        expected = "a description that says how many accelerators or cores the system has"
        found = "none" if result.system is None else "no such number"
        finding = Finding("scale.devices", expected, found, "describe the system", place)
        raise UserError(finding, ExitCode.INVALID)
    system, first = result.system or {}, result.runs[0]
    sealed = {run.number: run for run in result.runs}
    return Side(
        package=result.package,
        score=score,
        devices=devices,
        batch_size=_batch([sealed[run.number] for run in score.window]),
        task=tuple(
            str(first.fact(*keys) or "")
            for keys in (("task", "version"), ("task", "sha256"), ("data_sha256",))
        ),
        software=(
            visible(str(system.get("framework") or "").strip()),
            *(str(first.fact("code", key) or "") for key in ("suite_sha256", "trainer_sha256")),
        ),
        hardware=_hardware(system),
        runs=tuple(_run(sealed[run.number], run, score, devices) for run in score.window),
    )


def _run(sealed: SealedRun, run: RunScore, score: ResultScore, devices: Devices) -> ScalingRun:
    log, own = sealed.log, bool(score.plan)
    between = None if own else rate_between_evaluations(log, run.samples_to_target, run.curve)
    steady = (run.steady_samples_per_s or None) if own else between
    return ScalingRun(
        time_s=run.time_to_train_s,
        samples=run.samples_to_target,
        end_to_end=run.throughput_samples_per_s,
        steady=steady,
        counts=run.counts,
        device_seconds=_device_seconds(sealed, run, score, devices, steady),
    )


def _device_seconds(
    sealed: SealedRun,
    run: RunScore,
    score: ResultScore,
    devices: Devices,
    steady: float | None,
) -> dict[str, float] | None:
    """Return the device-seconds of a run by cause, as detailed as its log allows."""
    total_s = devices.used * run.time_to_train_s
    if not math.isfinite(total_s):
        return None
    ranks = plan_ranks(score.plan)
    if ranks is not None:
        parts = rank_seconds(sealed.log, ranks, run.time_to_train_s)
        if parts is not None:
            return {cause: value * devices.used / ranks for cause, value in parts.items()}
    evaluating = evaluation_s(sealed.log)
    if evaluating is not None:
        evaluation = devices.used * evaluating
        return {"evaluation": evaluation, "training": total_s - evaluation}
    if steady is not None:
        training = devices.used * run.samples_to_target / steady
        return {"steady-training": training, "start-up": total_s - training}
    return None


def _batch(runs: list[SealedRun]) -> int | None:
    batches = {repr(run.log.value(keys.GLOBAL_BATCH_SIZE)) for run in runs}
    value = whole(runs[0].log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP)
    return value if len(batches) == 1 else None


def _hardware(system: dict[str, object]) -> str:
    names = [system.get(f"{part}_model_name") for part in ("accelerator", "host_processor")]
    return visible(next((str(name).strip() for name in names if name), ""))
