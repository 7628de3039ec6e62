"""Score a result from its runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.log.package import edition_of
from hybridperf.score.convergence import benchmark_of, count_key
from hybridperf.score.projection import StepComparison, mean_comparison
from hybridperf.score.run_score import (
    Measurements,
    RunScore,
    known_mean,
    mean_measurements,
    score_run,
)
from hybridperf.score.statistics import (
    Interval,
    fewest_runs,
    median_window,
    olympic_interval,
    olympic_mean,
    scored,
)
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.tasks.registry import find_task, task_names
from hybridperf.untrusted import COUNT_CAP, number, whole

if TYPE_CHECKING:
    from hybridperf.log.package import Result, SealedRun
    from hybridperf.score.validity import Validity

__all__ = ["SCORED_KEYS", "ResultScore", "runs_of_result", "score_result"]

#: keys of the lines of MLPerf's logs that a score is computed from, besides the last line
SCORED_KEYS: Final = frozenset(
    {
        *(keys.SUBMISSION_BENCHMARK, keys.SUBMISSION_DIVISION, keys.SEED, keys.GLOBAL_BATCH_SIZE),
        *(keys.RUN_START, keys.RUN_STOP, keys.EVAL_START, keys.EVAL_STOP, keys.EVAL_ACCURACY),
        *(keys.TRAIN_SAMPLES, keys.PLAN, keys.ENDING),
    }
)


@dataclass(frozen=True, slots=True)
class ResultScore(Measurements):
    """The score of a result and of each of its runs."""

    org: str
    system: str
    benchmark: str  #: the task's name, such as ``resnet/laptop``
    edition: str  #: round of MLPerf, such as ``2.1``; empty for other results
    version: str  #: task version, with file and data hashes if needed; empty for MLPerf
    division: str
    plan: str
    trainer: str  #: package that trained, as the first manifest states; empty for MLPerf
    target: float | None
    required_runs: int | None
    drops: int  #: runs that the olympic mean drops at either end
    runs: tuple[RunScore, ...]  #: every attempt, sorted by number
    olympic_mean_s: float | None  #: None for fewer than `fewest_runs` completed
    interval_s: Interval | None
    samples_to_target: float | None  #: mean over the scored runs
    #: mean over the scored runs, or over the completed runs if none is scored
    beside_projection: StepComparison | None

    @property
    def completed(self) -> list[RunScore]:
        """Return the runs that were not ended externally."""
        return [run for run in self.runs if run.completion != "ended"]

    @property
    def window(self) -> list[RunScore]:
        """Return the completed runs in the scoring window, sorted by number."""
        return [run for run in self.runs if run.in_window]


def score_result(result: Result, validity: Validity | None = None) -> ResultScore:
    """Score ``result`` and each of its attempts.

    A run whose log is invalid by ``validity`` counts as a run that missed the target.
    """
    first = result.runs[0] if result.runs else None
    benchmark = benchmark_of(first.log, result.package.benchmark) if first else ""
    edition = edition_of(result.package)
    key = count_key([run.log for run in result.runs], benchmark, edition)
    required, drops = _required(first, benchmark), mlperf_benchmark(benchmark).drops
    scores = [
        score_run(run, benchmark, key, edition, validity.error_of(run.number) if validity else None)
        for run in result.runs
    ]
    runs = _with_window(scores, required, drops)
    window = [index for index, run in enumerate(runs) if run.in_window]
    times = [runs[index].time_to_train_s for index in window]
    counting: list[RunScore] = []
    if len(times) >= fewest_runs(drops):
        for position in scored(times, drops):
            index = window[position]
            runs[index] = dataclasses.replace(runs[index], counts=True)
            counting.append(runs[index])
    target = number(first.fact("task", "target"), 0, 1) if first else None
    return ResultScore(
        org=result.package.org,
        system=result.package.system,
        benchmark=benchmark,
        edition=edition,
        version=_version(first, benchmark),
        division=str(first.log.value(keys.SUBMISSION_DIVISION) or "") if first else "",
        plan=str(first.log.value(keys.PLAN) or "") if first else "",
        trainer=_text(first.fact("code", "trainer")) if first else "",
        target=None if target is None else float(target),
        required_runs=required,
        drops=drops,
        runs=tuple(runs),
        olympic_mean_s=olympic_mean(times, drops) if counting else None,
        interval_s=olympic_interval(times, drops),
        samples_to_target=known_mean(run.samples_to_target for run in counting),
        **mean_measurements(counting),
        beside_projection=mean_comparison(
            [
                run.beside_projection
                for run in counting or runs
                if run.beside_projection and run.completion != "ended"
            ]
        ),
    )


def runs_of_result(benchmark: str) -> int | None:
    """Return the number of runs required for a result; None if unknown."""
    if benchmark in task_names():
        return find_task(benchmark).runs.count
    return mlperf_benchmark(benchmark).runs


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _version(first: SealedRun | None, benchmark: str) -> str:
    """Return the task version, extended by hashes that comparable results must share.

    These are the data hash for an edition other than the task's default, and the task file and
    data hashes for user-defined tasks, whose versions are not controlled.
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
    """Return the number of runs required by the manifest, or else by MLPerf's rules."""
    if first is None or first.manifest is None:
        return runs_of_result(benchmark)
    required = first.fact("task", "runs")
    return whole(required, 1, COUNT_CAP)


def _with_window(runs: list[RunScore], required: int | None, drops: int) -> list[RunScore]:
    """Return ``runs``, marking the runs in the scoring window."""
    in_order = sorted(
        (index for index, run in enumerate(runs) if run.completion != "ended"),
        key=lambda index: runs[index].began_ms,
    )
    times = [runs[index].time_to_train_s for index in in_order]
    positions = median_window(times, required or len(times), drops)
    window = {in_order[position] for position in positions}
    return [dataclasses.replace(run, in_window=index in window) for index, run in enumerate(runs)]
