"""Turn the runs of a result into its score."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.logs import keys
from suite.scores.convergence import benchmark_of, count_key
from suite.scores.interval import Interval, olympic_interval
from suite.scores.olympic import olympic_mean, scored
from suite.scores.rcp_set import runs_of_result
from suite.scores.run_score import RunScore, known_mean, score_run
from suite.scores.windows import median_window
from suite.tasks.registry import find_task, task_names

if TYPE_CHECKING:
    from suite.logs.package import Result, SealedRun

__all__ = ["ResultScore", "score_result"]


@dataclass(frozen=True, slots=True)
class ResultScore:
    """A result in numbers."""

    org: str
    system: str
    benchmark: str  #: the task's name, such as ``resnet/laptop``
    version: str  #: of the task and, where they may differ, its file and data; empty for MLPerf's
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
    loader_samples_per_s: float | None  #: mean over the runs that count
    appetite_samples_per_s: float | None  #: mean over the runs that count

    @property
    def completed(self) -> list[RunScore]:
        """Return the runs that ended by themselves."""
        return [run for run in self.runs if run.completion != "ended"]

    @property
    def window(self) -> list[RunScore]:
        """Return the completed runs that the result is made of, by number."""
        return [run for run in self.runs if run.in_window]


def score_result(result: Result) -> ResultScore:
    """Score every attempt of ``result`` and the result as a whole."""
    first = result.runs[0] if result.runs else None
    benchmark = benchmark_of(first.log, result.package.benchmark) if first else ""
    key = count_key([run.log for run in result.runs], benchmark)
    required = _required(first, benchmark)
    runs = _windowed([score_run(run, benchmark, key) for run in result.runs], required)
    window = [index for index, run in enumerate(runs) if run.in_window]
    times = [runs[index].time_to_train_s for index in window]
    counting: list[RunScore] = []
    if len(times) >= 3:
        for place in scored(times):
            index = window[place]
            runs[index] = dataclasses.replace(runs[index], counts=True)
            counting.append(runs[index])
    target = first.fact("task", "target") if first else None
    return ResultScore(
        org=result.package.org,
        system=result.package.system,
        benchmark=benchmark,
        version=_version(first, benchmark),
        division=str(first.log.value(keys.SUBMISSION_DIVISION) or "") if first else "",
        plan=str(first.log.value(keys.PLAN) or "") if first else "",
        target=float(target) if isinstance(target, int | float) else None,
        required_runs=required,
        runs=tuple(runs),
        olympic_mean_s=olympic_mean(times) if counting else None,
        interval_s=olympic_interval(times),
        samples_to_target=known_mean(run.samples_to_target for run in counting),
        throughput_samples_per_s=known_mean(run.throughput_samples_per_s for run in counting),
        steady_samples_per_s=known_mean(run.steady_samples_per_s for run in counting),
        bubble=known_mean(run.bubble for run in counting),
        exposed_communication=known_mean(run.exposed_communication for run in counting),
        loader_samples_per_s=known_mean(run.loader_samples_per_s for run in counting),
        appetite_samples_per_s=known_mean(run.appetite_samples_per_s for run in counting),
    )


def _version(first: SealedRun | None, benchmark: str) -> str:
    """Return the task's version, and hashes of what else must be the same to compare results.

    That is the data's where it is another edition than the task's own; of a user's own task, whose
    versions nobody keeps, those of its file and of the data.
    """
    version = first.fact("task", "version") if first else None
    if first is None or not isinstance(version, int | str):
        return ""
    data_sha256 = first.fact("data_sha256")
    if benchmark not in task_names():
        return f"{version}-{first.fact('task', 'sha256')!s:.12}-{data_sha256!s:.12}"
    data = find_task(benchmark).data
    if data.editions is None or data_sha256 == data.sha256:
        return str(version)
    return f"{version}-{data_sha256!s:.12}"


def _required(first: SealedRun | None, benchmark: str) -> int | None:
    """Return how many runs make a result: as its manifest says, or else MLPerf's rules."""
    if first is None or first.manifest is None:
        return runs_of_result(benchmark)
    required = first.fact("task", "runs")
    return required if isinstance(required, int) else None


def _windowed(runs: list[RunScore], required: int | None) -> list[RunScore]:
    """Return ``runs``, those marked that the result is made of."""
    in_order = sorted(
        (index for index, run in enumerate(runs) if run.completion != "ended"),
        key=lambda index: runs[index].began_ms,
    )
    times = [runs[index].time_to_train_s for index in in_order]
    window = {in_order[place] for place in median_window(times, required or len(times))}
    return [dataclasses.replace(run, in_window=index in window) for index, run in enumerate(runs)]
