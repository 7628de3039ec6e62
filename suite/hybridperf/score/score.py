"""Score a result from its runs."""

from __future__ import annotations

import dataclasses
import math
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
    estimate,
    fewest_runs,
    mean_interval,
    median_window,
    olympic_mean,
    scored,
)
from hybridperf.score.validity import Judgement
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
    #: arithmetic mean of the `compared` runs, a lower bound if one missed; None without runs, or if
    #: more missed than may
    mean_s: float | None
    olympic_mean_s: float | None  #: MLPerf's, of its window; None for fewer than `fewest_runs`
    interval_s: Interval | None  #: 95 % interval of `time_s`; no upper end if a run missed
    samples_to_target: float | None  #: mean over the scored runs
    #: mean over the scored runs, or over the completed runs if none is scored
    beside_projection: StepComparison | None

    @property
    def own(self) -> bool:
        """Tell whether this harness produced the result; MLPerf submissions log no plan."""
        return bool(self.plan)

    @property
    def time_s(self) -> float | None:
        """Return the time to train that scores the result: MLPerf's results by olympic mean."""
        return self.mean_s if self.own else self.olympic_mean_s

    @property
    def completed(self) -> list[RunScore]:
        """Return the runs that were not ended externally."""
        return [run for run in self.runs if run.completion != "ended"]

    @property
    def busy_runs(self) -> str:
        """Return how many completed runs met a busy machine; "" if none did."""
        busy = sum(bool(run.busy) for run in self.completed)
        return f"{busy} of {len(self.completed)} runs" if busy else ""

    @property
    def window(self) -> list[RunScore]:
        """Return the completed runs in the window of MLPerf's score, sorted by number."""
        return [run for run in self.runs if run.in_window]

    @property
    def compared(self) -> list[RunScore]:
        """Return the runs in means and tests: all completed ones, or MLPerf's window."""
        return self.completed if self.own else self.window

    @property
    def segments(self) -> tuple[tuple[str, ...], ...]:
        """Return the plans of each completed run, sorted; empty if no run changed its plan."""
        plans = tuple(sorted(run.plans for run in self.completed))
        return plans if any(len(each) > 1 for each in plans) else ()

    @property
    def missed(self) -> int:
        """Return how many of the compared runs missed the target."""
        return sum(run.completion == "missed" for run in self.compared)


def score_result(result: Result, validity: Validity | None = None) -> ResultScore:
    """Score ``result`` and each of its attempts.

    Our own results are scored by the arithmetic mean of all completed runs. A run that missed the
    target enters it with a lower bound of its time: the time that it ran, or the time of the
    slowest run that reached the target if that is longer. MLPerf's results are scored by MLPerf's
    rules. A run whose log is invalid by ``validity`` counts as a run that missed the target.
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
    enough = len(times) >= fewest_runs(drops)
    plan = str(first.log.value(keys.PLAN) or "") if first else ""
    compared = window
    count = [window[position] for position in scored(times, drops)] if enough else []
    if plan:
        count = compared = [at for at, run in enumerate(runs) if run.completion != "ended"]
    for index in count:
        runs[index] = dataclasses.replace(runs[index], counts=True)
    _bound(runs, compared)
    counting, least_s = [runs[at] for at in count], [runs[at].least_s for at in compared]
    missed = any(runs[at].completion == "missed" for at in compared)
    interval = _interval(least_s if plan else times, 0 if plan else drops, missed)
    converged = validity is None or validity.judgement is not Judgement.MISSED
    # Of all compared runs: how fast a run goes does not depend on whether it converged.
    rates = [runs[at].steady_samples_per_s for at in compared]
    steady = None if None in rates else known_mean(rates)
    target = number(first.fact("task", "target"), 0, 1) if first else None
    return ResultScore(
        org=result.package.org,
        system=result.package.system,
        benchmark=benchmark,
        edition=edition,
        version=_version(first, benchmark),
        division=str(first.log.value(keys.SUBMISSION_DIVISION) or "") if first else "",
        plan=plan,
        trainer=_text(first.fact("code", "trainer")) if first else "",
        target=None if target is None else float(target),
        required_runs=required,
        drops=drops,
        runs=tuple(runs),
        mean_s=known_mean(least_s) if converged else None,
        olympic_mean_s=olympic_mean(times, drops) if enough else None,
        interval_s=interval if converged else None,
        samples_to_target=known_mean(run.least_samples for run in counting),
        **mean_measurements(counting) | {"steady_samples_per_s": steady},
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


def _bound(runs: list[RunScore], compared: list[int]) -> None:
    """Set the times and samples of ``compared`` runs, or their lower bounds, in ``runs``."""
    reached = [runs[at] for at in compared if runs[at].completion == "reached"]
    # A run that stopped early, as by diverging, must not help its result.
    least_s = max((run.time_to_train_s for run in reached), default=0.0)
    least_samples = max((run.samples_to_target for run in reached), default=0)
    for at in compared:
        run = runs[at]
        time_s, samples = run.time_to_train_s, run.samples_to_target
        if run.completion == "missed":
            time_s, samples = max(run.elapsed_s, least_s), max(samples, least_samples)
        runs[at] = dataclasses.replace(run, least_s=time_s, least_samples=samples)


def _interval(times_s: list[float], drops: int, missed: bool) -> Interval | None:
    """Return the interval of the mean of ``times_s`` [run], without upper end if a run missed."""
    interval = mean_interval(estimate(times_s, drops))
    return interval and Interval(interval.low, math.inf if missed else interval.high)
