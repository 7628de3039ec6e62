"""A result as scaling efficiency sees it: its devices, its software and its runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.findings import Finding, visible
from suite.logs import keys
from suite.refusal import ExitCode, Refusal
from suite.scores.scaling.breakdown import evaluation_s, rank_seconds
from suite.scores.scaling.devices import Devices, devices_used, plan_ranks
from suite.scores.scaling.metrics import rate_between_evaluations
from suite.scores.score import score_result

if TYPE_CHECKING:
    from suite.logs.package import Package, Result, SealedRun
    from suite.scores.run_score import RunScore
    from suite.scores.score import ResultScore

__all__ = ["ScalingRun", "Side", "side_of"]

_FEWEST: Final = 3  #: runs of which there is an olympic mean
_MOST_BATCH: Final = 10**12


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """A run that its result is made of."""

    time_s: float  #: time to train; infinite where the target was missed
    samples: int
    end_to_end: float  #: samples per second
    steady: float | None  #: samples per second
    counts: bool  #: in the olympic mean
    device_seconds: dict[str, float] | None  #: by cause, as finely as the log says


@dataclass(frozen=True, slots=True)
class Side:
    """A result that scaling is measured from or to."""

    package: Package
    score: ResultScore
    devices: Devices
    batch_size: int | None  #: global, where all runs have the same
    task: tuple[str, ...]  #: version, hash and that of the data
    software: tuple[str, ...]  #: framework, then hashes of the code
    hardware: str
    runs: tuple[ScalingRun, ...]

    @property
    def name(self) -> str:
        """Return what the result is called, safe to show."""
        return visible(f"{self.package.org} {self.package.system}")

    @property
    def counting(self) -> list[ScalingRun]:
        """Return the runs in the olympic mean."""
        return [run for run in self.runs if run.counts]

    @property
    def steady_by(self) -> str:
        """Return what the steady throughput is taken over."""
        return (
            "training without evaluations"
            if self.score.plan
            else "first evaluation to last, those in between included"
        )


def side_of(result: Result) -> Side:
    """Return ``result`` as scaling efficiency sees it.

    Raises:
        Refusal: exit status 3 where fewer than three runs completed, or where nothing says how
            many devices there were.
    """
    score = score_result(result)
    place = result.package.name
    if len(score.window) < _FEWEST:
        found = f"{len(score.window)}" if score.window else "none"
        expected = f"{_FEWEST} completed runs or more, which make an olympic mean"
        finding = Finding("scale.runs", expected, found, "make more runs", place)
        raise Refusal(finding, ExitCode.INVALID)
    devices = devices_used(score.plan, result.system)
    if devices is None:
        expected = "a description that says how many accelerators or cores the system has"
        found = "none" if result.system is None else "no such number"
        finding = Finding("scale.devices", expected, found, "describe the system", place)
        raise Refusal(finding, ExitCode.INVALID)
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
    """Return what the run's device time was spent on, as finely as its log says."""
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
    value = runs[0].log.value(keys.GLOBAL_BATCH_SIZE)
    known = len(batches) == 1 and type(value) is int and 0 < value < _MOST_BATCH
    return value if known and isinstance(value, int) else None


def _hardware(system: dict[str, object]) -> str:
    names = [system.get(f"{part}_model_name") for part in ("accelerator", "host_processor")]
    return visible(next((str(name).strip() for name in names if name), ""))
