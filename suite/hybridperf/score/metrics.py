"""Declare all metrics of a result.

`METRICS` defines the columns, and their order, of the terminal, HTML and Markdown tables, of CSV,
JSON and Parquet files, of ``compare`` and of the documentation. To add a metric, add a `Metric`.
"""

from __future__ import annotations

import math
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from hybridperf.findings import visible
from hybridperf.score.context_metrics import EFFICIENCY, IMPROVEMENT, PUBLISHED
from hybridperf.score.interval import METHOD
from hybridperf.score.metric import Metric
from hybridperf.score.projection_metrics import BESIDE_PROJECTION
from hybridperf.score.ranking import standing_of
from hybridperf.score.rcp_metrics import RCP

if TYPE_CHECKING:
    from hybridperf.score.metric import Table
    from hybridperf.score.official import Official

__all__ = ["METRICS", "metrics_of", "row_of"]


def metrics_of(table: Table) -> list[Metric]:
    """Return the metrics shown in ``table``."""
    return [each for each in METRICS.values() if each.heading and table in each.tables]


def row_of(result: Official) -> dict[str, object]:
    """Return all metrics of ``result`` by name, JSON-serialisable; None if unknown or infinite."""
    values = {name: metric.source(result) for name, metric in METRICS.items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _logged(result: Official, value: float | None) -> float | None:
    """Return ``value``, with 0 meaning unknown in logs of MLPerf submissions."""
    return value if result.own else value or None


def _interval(result: Official) -> str:
    interval = result.score.interval_s
    if interval is None:
        return ""
    scale, digits = (1, 2) if result.own else (60, 3)
    low, high = interval.low / scale, interval.high / scale
    if math.isinf(high):
        return f"{low:,.{digits}f} or more"
    return f"{low:,.{digits}f} to {high:,.{digits}f}"


def _time(result: Official) -> str:
    mean_s = result.score.olympic_mean_s
    if mean_s is None:
        return ""
    return "missed" if math.isinf(mean_s) else f"{mean_s:,.2f} s"


def _official(result: Official) -> str:
    if result.minutes is None:
        return result.no_score[0]
    return f"{result.minutes * 60:,.2f} s" if result.own else f"{result.minutes:.4f}"


def _dropped(result: Official) -> str:
    """Return the numbers of the unscored runs, with the reason unless it is speed."""
    words = {"fastest": "", "slowest": "", "slowest: did not reach the target": " missed"}

    def word(why: str) -> str:
        invalid = why.startswith("slowest: its log is invalid")
        return words.get(why, " invalid" if invalid else " not scored")

    return ", ".join(f"{each['run']}{word(str(each['why']))}" for each in result.dropped)


def _runs(result: Official) -> str:
    """Return how many runs completed, of how many, and which attempts did not."""
    completed, runs = len(result.score.completed), result.score.runs
    if not result.own:
        return f"{completed}"
    others = Counter(f"{run.outcome:.20}" for run in runs if run.completion == "ended")
    if retries := sum(run.retries for run in runs):
        others["of which no log was kept"] = retries
    words = [f"{count} {word}" for word, count in sorted(others.items())]
    return visible(", ".join([f"{completed} of {result.score.required_runs or '?'}", *words]))


_TERMINAL: Final[tuple[Table, ...]] = ("ours", "mlperf")
_ALL_RESULTS: Final[tuple[Table, ...]] = (*_TERMINAL, "site")
_OF_MLPERF: Final[tuple[Table, ...]] = ("mlperf", "site")

_ALL: Final = (
    Metric(
        "place_best",
        "the best place that the test allows; results that tie may share places",
        lambda result: result.place.best if result.place else None,
        kind="whole",
        heading="place",
        show=lambda result: str(result.place or ""),
        tables=_ALL_RESULTS,
        keep=8,
    ),
    Metric(
        "place_worst",
        "the worst one",
        lambda result: result.place.worst if result.place else None,
        kind="whole",
    ),
    Metric(
        "no_place",
        "why the result has no place; empty where it may have one",
        lambda result: standing_of(result)[1],
        kind="text",
    ),
    Metric(
        "round",
        "round of MLPerf Training, by the name of the folder",
        lambda result: result.score.edition or None,
        kind="text",
        heading="round",
        tables=("mlperf",),
        keep=9,
    ),
    Metric(
        "submitter",
        "organisation",
        attrgetter("score.org"),
        kind="text",
        heading="submitter",
        tables=_OF_MLPERF,
        keep=6,
    ),
    Metric(
        "system",
        "system and plan",
        attrgetter("score.system"),
        kind="text",
        heading="system",
        tables=("mlperf",),
        keep=9,
    ),
    Metric(
        "benchmark",
        "task",
        attrgetter("score.benchmark"),
        kind="text",
        heading="task",
        tables=_TERMINAL,
        keep=9,
    ),
    Metric(
        "version",
        "of the task; with the data's hash where editions differ, and a user's own with its "
        "file's too; empty for MLPerf's benchmarks",
        attrgetter("score.version"),
        kind="text",
    ),
    Metric("division", "closed or open", attrgetter("division"), kind="text"),
    Metric(
        "plan",
        "parallel plan",
        attrgetter("score.plan"),
        kind="text",
        heading="plan",
        tables=("ours",),
        keep=9,
    ),
    Metric(
        "rung",
        "how far the result can be believed: the rung of the ladder that its evidence reaches",
        attrgetter("trust.level"),
        kind="text",
        heading="rung",
        show=lambda result: result.trust.words,
        tables=("ours", "page", "markdown"),
        keep=6,
    ),
    Metric(
        "rung_evidence",
        "what names the rung's evidence: sandbox, key, organisation",
        attrgetter("trust.evidence"),
        kind="text",
    ),
    Metric("rung_lacks", "what the next rung takes", attrgetter("trust.lacks"), kind="text"),
    Metric(
        "trainer",
        "package that trained; empty for MLPerf's results",
        attrgetter("score.trainer"),
        kind="text",
        heading="trainer",
        tables=("ours", "page", "markdown"),
        keep=2,
    ),
    Metric(
        "accelerators",
        "of the whole system, as its description states",
        attrgetter("accelerators"),
        kind="whole",
        heading="accelerators",
        form=",d",
        tables=_OF_MLPERF,
        keep=5,
    ),
    Metric(
        "olympic_mean_s",
        "time to train: mean without the fastest and the slowest run",
        attrgetter("score.olympic_mean_s"),
        unit="s",
        better="lower",
        heading="time to train",
        show=_time,
        tables=("ours", "compare"),
        keep=9,
    ),
    Metric(
        "olympic_minutes",
        "the same in minutes",
        attrgetter("olympic_minutes"),
        unit="min",
        better="lower",
        heading="olympic",
        form=".4f",
        tables=_OF_MLPERF,
        keep=6,
    ),
    Metric(
        "interval_low_s",
        "lower end of its 95 % interval",
        lambda result: result.score.interval_s.low if result.score.interval_s else None,
        unit="s",
        heading="95 % interval",
        show=_interval,
        tables=_ALL_RESULTS,
        keep=7,
    ),
    Metric(
        "interval_high_s",
        "upper end; null with a lower end where a run missed the target: nothing bounds it",
        lambda result: result.score.interval_s.high if result.score.interval_s else None,
        unit="s",
    ),
    Metric(
        "interval_method",
        "how the interval is made, with its seed",
        lambda result: METHOD if result.score.interval_s else None,
        kind="text",
    ),
    Metric(
        "samples_to_target",
        "mean over the runs that count",
        lambda result: _logged(result, result.score.samples_to_target),
        unit="samples",
        better="lower",
        heading="samples",
        form=",.0f",
        tables=("ours", "mlperf", "site", "compare"),
        keep=3,
    ),
    Metric(
        "throughput_samples_per_s",
        "end to end, mean over the runs that count",
        lambda result: _logged(result, result.score.throughput_samples_per_s),
        unit="samples/s",
        better="higher",
        heading="samples/s",
        form=",.0f",
        keep=4,
        tables=("ours", "mlperf", "page", "site", "compare"),
    ),
    Metric(
        "steady_samples_per_s",
        "while training, mean over the runs that count",
        lambda result: _logged(result, result.score.steady_samples_per_s),
        unit="samples/s",
        better="higher",
        heading="steady samples/s",
        form=",.0f",
        tables=("page", "compare"),
    ),
    Metric(
        "bubble",
        "share of device time waiting for other stages",
        attrgetter("score.bubble"),
        better="lower",
        heading="bubble",
        form=".1%",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "exposed_communication",
        "share of device time waiting for an all-reduce",
        attrgetter("score.exposed_communication"),
        better="lower",
        heading="exposed all-reduce",
        form=".1%",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "loader_samples_per_s",
        "what the loaders of all ranks could deliver",
        attrgetter("score.loader_samples_per_s"),
        unit="samples/s",
        better="higher",
    ),
    Metric(
        "compute_samples_per_s",
        "what training could consume if input cost nothing",
        attrgetter("score.compute_samples_per_s"),
        unit="samples/s",
        better="higher",
    ),
    *BESIDE_PROJECTION,
    Metric(
        "evaluations",
        "mean over the runs that count",
        attrgetter("evaluations"),
        heading="evaluations",
        form=",.1f",
        tables=("mlperf",),
    ),
    Metric(
        "runs",
        "completed runs",
        lambda result: len(result.score.completed),
        kind="whole",
        heading="runs",
        show=_runs,
        tables=_ALL_RESULTS,
        keep=5,
    ),
    Metric(
        "required_runs",
        "runs that the task asks for",
        attrgetter("score.required_runs"),
        kind="whole",
    ),
    Metric(
        "attempts",
        "all attempts, ended ones included",
        lambda result: sum(1 + run.retries for run in result.score.runs),
        kind="whole",
    ),
    Metric(
        "dropped",
        "runs that do not count, and why",
        attrgetter("dropped"),
        kind="list",
        heading="dropped",
        show=_dropped,
        tables=_ALL_RESULTS,
    ),
    Metric(
        "logs",
        "how many logs are valid by the ruleset, or that none judged them",
        lambda result: result.validity.words,
        kind="text",
        heading="logs",
        tables=_OF_MLPERF,
        keep=8,
    ),
    Metric(
        "ruleset",
        "that judged the logs",
        lambda result: result.validity.ruleset or None,
        kind="text",
    ),
    Metric(
        "rcp_factor",
        "by which the reference convergence points multiply the time",
        attrgetter("verdict.factor"),
        heading="RCP",
        form=".5f",
        tables=_ALL_RESULTS,
        keep=3,
    ),
    Metric(
        "official_minutes",
        "olympic_minutes times rcp_factor; none where logs are invalid or the test is failed",
        attrgetter("minutes"),
        unit="min",
        better="lower",
        heading="official",
        show=_official,
        tables=_ALL_RESULTS,
        keep=9,
    ),
    Metric(
        "no_score",
        "why there is no official_minutes; empty where there is",
        lambda result: result.no_score[1],
        kind="text",
    ),
    *RCP,
    *PUBLISHED,
    *EFFICIENCY,
    *IMPROVEMENT,
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _ALL}
