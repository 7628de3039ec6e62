"""Compute the official score: the olympic mean scaled by the RCP normalisation factor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hybridperf.evidence.trust import Trust
from hybridperf.findings import visible
from hybridperf.log import keys
from hybridperf.log.rounds import is_published
from hybridperf.score.convergence import amount, count_key
from hybridperf.score.olympic import fewest_runs
from hybridperf.score.rcp import Verdict, judge, task_references
from hybridperf.score.run_score import known_mean
from hybridperf.score.score import runs_of_result, score_result
from hybridperf.system.counts import accelerator_count
from hybridperf.tasks.mlperf import mlperf_benchmark
from hybridperf.untrusted import COUNT_CAP, RATIO_CAP, number, read_object, reason, whole

if TYPE_CHECKING:
    from hybridperf.log.package import Result
    from hybridperf.score.rcp import Mode, RcpSet
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore

__all__ = ["Official", "Place", "official_of", "official_score"]


@dataclass(frozen=True, slots=True)
class Place:
    """The range of leaderboard places of a result, counted from 1."""

    best: int
    worst: int

    def __str__(self) -> str:
        return f"{self.best}" if self.best == self.worst else f"{self.best}–{self.worst}"  # noqa: RUF001 - a range takes an en dash


@dataclass(frozen=True, slots=True)
class Official:
    """A result with its official score and, once assigned, its leaderboard place."""

    score: ResultScore
    division: str
    accelerators: int | None
    evaluations: float | None  #: mean over the scored runs
    counted_by: str  #: log key that measures convergence
    batch_size: int | None  #: global; None if the runs that reached the target differ
    mode: Mode
    verdict: Verdict
    files: tuple[str, ...]  #: log file names, in the order of the runs
    trust: Trust = field(default_factory=Trust)  #: assigned by whoever checks the result too
    place: Place | None = None  #: assigned by `hybridperf.score.ranking.with_places`

    @property
    def own(self) -> bool:
        """Tell whether this harness produced the result; MLPerf submissions log no plan."""
        return bool(self.score.plan)

    @property
    def olympic_minutes(self) -> float | None:
        """Return the olympic mean in minutes; None if unknown or infinite."""
        mean_s = self.score.olympic_mean_s
        return mean_s / 60 if mean_s is not None and math.isfinite(mean_s) else None

    @property
    def minutes(self) -> float | None:
        """Return the official score in minutes; None if unknown or if the RCP test fails."""
        factor, minutes = self.verdict.factor, self.olympic_minutes
        if minutes is None or factor is None or self.verdict.passed is False:
            return None
        return minutes * factor

    @property
    def idle_share(self) -> float | None:
        """Return the share of device time spent waiting for other devices; None if unknown."""
        parts = (self.score.bubble, self.score.exposed_communication)
        known = [part for part in parts if part is not None]
        return math.fsum(known) if known else None

    @property
    def dropped(self) -> list[dict[str, object]]:
        """Return the unscored runs, each with the reason."""
        return [
            {
                "run": run.number,
                "file": file,
                "time_s": run.time_to_train_s if math.isfinite(run.time_to_train_s) else None,
                "why": _why(run, self.score),
            }
            for run, file in zip(self.score.runs, self.files, strict=True)
            if not run.counts
        ]


def official_of(
    result: Result, references: RcpSet | None = None, mode: Mode | None = None
) -> Official:
    """Score ``result`` and test its convergence against reference convergence points (RCPs).

    ``references`` default to those of the task. If both ``mode`` and ``references`` are None, a
    result of a published round takes its factor from that round.
    """
    published = references is None and is_published(result.package)
    chosen: Mode = mode or ("published" if published else "rules")
    return official_score(result, score_result(result), references, chosen)


def official_score(
    result: Result, score: ResultScore, references: RcpSet | None, mode: Mode = "rules"
) -> Official:
    """Return the official score of ``result``, given its ``score``."""
    own = bool(score.plan)
    if own and mode == "published":  # no round has published this suite's results
        mode = "rules"
    logs = [run.log for run in result.runs]
    key = count_key(logs, score.benchmark)
    window = [
        (run, sealed.log)
        for run, sealed in zip(score.runs, result.runs, strict=True)
        if run.in_window
    ]
    reached = [(run, log) for run, log in window if run.completion == "reached"]
    batches = {whole(log.value(keys.GLOBAL_BATCH_SIZE), 1, COUNT_CAP) for _, log in reached}
    batch = batches.pop() if len(batches) == 1 else None
    division = score.division if own else str((result.system or {}).get("division") or "")
    division = division or score.division
    amounts = [
        math.inf if run.completion != "reached" else run.samples_to_target if own else took
        for run, log in window
        for took in [amount(log, key)]
    ]
    counting = [log for run, log in window if run.counts]
    evaluations = [len(log.all(keys.EVAL_ACCURACY)) for log in counting]
    return Official(
        score=score,
        division=division,
        accelerators=accelerator_count(result.system),
        evaluations=known_mean(evaluations),
        counted_by=key,
        batch_size=batch,
        mode=mode,
        verdict=_published_factor(result)
        if mode == "published"
        else _judge(score.benchmark, division, batch, amounts, references, mode),
        files=tuple(log.path.rpartition("/")[2] for log in logs),
    )


def _judge(
    benchmark: str,
    division: str,
    batch: int | None,
    amounts: list[float | None],
    references: RcpSet | None,
    mode: Mode,
) -> Verdict:
    if division.lower() == "open":
        return Verdict(None, "the open division is not tested", factor=1.0)
    points = (references or {}).get(benchmark) or task_references(benchmark)
    runs = runs_of_result(benchmark)
    known = [each for each in amounts if each is not None]
    if not points and references is None:
        return Verdict(None, "no reference points; name their folder with --rcp-set")
    if not points or runs is None:
        return Verdict(None, f"no reference points for {benchmark!r:.80}")
    if batch is None:
        return Verdict(None, "the runs log no global_batch_size, or differing ones")
    if len(known) < len(amounts):
        return Verdict(None, "a run does not log the epochs or samples it trained")
    return judge(points, batch, known, runs, mlperf_benchmark(benchmark).drops, mode)


def _why(run: RunScore, score: ResultScore) -> str:
    if run.completion == "ended":
        return visible(f"not scored: {run.outcome}")
    if not run.in_window:
        return "not scored: outside the runs in a row whose olympic mean is the median"
    counting = [each.time_to_train_s for each in score.window if each.counts]
    if not counting:
        return f"not scored: fewer than {fewest_runs(score.drops)} runs"
    if run.completion == "missed":
        return "slowest: did not reach the target"
    return "fastest" if run.time_to_train_s <= min(counting) else "slowest"


def _published_factor(result: Result) -> Verdict:
    """Return the factor that MLPerf's tools wrote to ``scaling.json``; 1 if there is none."""
    path = result.package.folder / "scaling.json"
    try:
        stated = read_object(path).get("scaling_factor")
    except FileNotFoundError:
        return Verdict(None, "published without scaling.json, so with 1", factor=1.0)
    except (OSError, ValueError) as error:
        return Verdict(None, f"scaling.json: {reason(error)}")
    if (factor := number(stated, 1, RATIO_CAP)) is None:
        return Verdict(None, f"scaling.json: a factor of {stated!r:.40}")
    return Verdict(None, "as published in scaling.json", factor=float(factor))
