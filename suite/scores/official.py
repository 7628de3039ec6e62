"""The official score: the olympic mean times the factor of the reference convergence points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.findings import visible
from suite.logs import keys
from suite.scores.convergence import amount, count_key
from suite.scores.interval import METHOD
from suite.scores.published import published_factor
from suite.scores.rcp import Verdict, judge
from suite.scores.rcp_set import runs_of_result, task_references
from suite.scores.table import score_row

if TYPE_CHECKING:
    from suite.logs.package import Result
    from suite.scores.rcp import Mode
    from suite.scores.rcp_set import RcpSet
    from suite.scores.run_score import RunScore
    from suite.scores.score import ResultScore

__all__ = ["Official", "official_score"]

_MOST: Final = 1e15  #: samples in a batch; more was not measured


@dataclass(frozen=True, slots=True)
class Official:
    """A result as a round publishes it."""

    score: ResultScore
    division: str
    accelerators: int | None
    evaluations: float | None  #: mean over the runs that count
    counted_by: str  #: the log's key that says what convergence took
    batch_size: int | None  #: of the runs that reached the target, where they agree
    mode: Mode
    verdict: Verdict
    files: tuple[str, ...]  #: the logs, in the order of the runs

    @property
    def olympic_minutes(self) -> float | None:
        """Return the olympic mean; None where unknown or infinite."""
        mean_s = self.score.olympic_mean_s
        return mean_s / 60 if mean_s is not None and math.isfinite(mean_s) else None

    @property
    def minutes(self) -> float | None:
        """Return the official score; None where it is unknown or the test is failed."""
        factor, minutes = self.verdict.factor, self.olympic_minutes
        if minutes is None or factor is None or self.verdict.passed is False:
            return None
        return minutes * factor

    def row(self) -> dict[str, object]:
        """Return the columns of `suite.scores.table.ALL_COLUMNS` but the ranks, safe as JSON."""
        row, verdict = score_row(self.score), self.verdict
        if not self.score.plan:  # MLPerf's logs: what is not in them is unknown, not zero
            for name in ("samples_to_target", "throughput_samples_per_s", "steady_samples_per_s"):
                row[name] = row[name] or None
        return row | {
            "division": self.division,
            "version": self.score.version,
            "accelerators": self.accelerators,
            "loader_samples_per_s": self.score.loader_samples_per_s,
            "appetite_samples_per_s": self.score.appetite_samples_per_s,
            "evaluations": self.evaluations,
            "interval_method": METHOD if self.score.interval_s else None,
            "olympic_minutes": self.olympic_minutes,
            "rcp_factor": verdict.factor,
            "official_minutes": self.minutes,
            "rcp_mode": self.mode,
            "rcp_passed": verdict.passed,
            "rcp_reason": verdict.how,
            "rcp_batch_size": self.batch_size,
            "rcp_counted_by": self.counted_by,
            "rcp_mean": verdict.mean,
            "rcp_reference_mean": verdict.reference_mean,
            "rcp_limit": verdict.limit,
            "dropped": self.dropped,
        }

    @property
    def idle_share(self) -> float | None:
        """Return the share of device time spent waiting for other devices, where known."""
        parts = (self.score.bubble, self.score.exposed_communication)
        known = [part for part in parts if part is not None]
        return math.fsum(known) if known else None

    @property
    def dropped(self) -> list[dict[str, object]]:
        """Return the runs that do not count, and why."""
        times = [run.time_to_train_s for run in self.score.window]
        return [
            {
                "run": run.number,
                "file": file,
                "time_s": run.time_to_train_s if math.isfinite(run.time_to_train_s) else None,
                "why": _why(run, times),
            }
            for run, file in zip(self.score.runs, self.files, strict=True)
            if not run.counts
        ]


def official_score(
    result: Result, score: ResultScore, references: RcpSet | None, mode: Mode = "rules"
) -> Official:
    """Return the official score of ``result``, whose ``score`` is known."""
    own = bool(score.plan)
    if own and mode == "published":  # of our own, only the reference points are
        mode = "rules"
    logs = [run.log for run in result.runs]
    key = count_key(logs, score.benchmark)
    window = [
        (run, sealed.log)
        for run, sealed in zip(score.runs, result.runs, strict=True)
        if run.in_window
    ]
    reached = [(run, log) for run, log in window if run.completion == "reached"]
    batches = {_positive(log.value(keys.GLOBAL_BATCH_SIZE)) for _, log in reached}
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
        accelerators=_accelerators(result.system),
        evaluations=math.fsum(evaluations) / len(evaluations) if evaluations else None,
        counted_by=key,
        batch_size=batch,
        mode=mode,
        verdict=published_factor(result)
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
        return Verdict(None, "the runs name no global_batch_size, or not the same")
    if len(known) < len(amounts):
        return Verdict(None, "a run does not say what it took to converge")
    return judge(points, batch, known, runs, mode)


def _why(run: RunScore, times_s: list[float]) -> str:
    if run.completion == "ended":
        return visible(f"not scored: {run.outcome}")
    if not run.in_window:
        return "not scored: outside the runs in a row whose olympic mean is the median"
    if len(times_s) < 3:
        return "not scored: fewer than three runs"
    if run.completion == "missed":
        return "slowest: did not reach the target"
    return "fastest" if run.time_to_train_s == min(times_s) else "slowest"


def _accelerators(system: dict[str, object] | None) -> int | None:
    """Return how many accelerators the system description names in all; None where unknown."""
    counts = [(system or {}).get(key) for key in ("number_of_nodes", "accelerators_per_node")]
    # Mostly text, but also 8 and 8.0; what is no whole number is not guessed.
    numbers = [str(each).strip().removesuffix(".0") for each in counts]
    if not all(each.isascii() and each.isdigit() and len(each) <= 9 for each in numbers):
        return None
    nodes, per_node = map(int, numbers)
    return nodes * per_node


def _positive(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < _MOST else None
