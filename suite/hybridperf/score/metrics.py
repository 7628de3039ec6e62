"""Declare all metrics of a result.

`METRICS` defines the columns, and their order, of the terminal, HTML and Markdown tables, of CSV,
JSON and Parquet files, of ``compare`` and of the documentation. To add a metric, add a `Metric`;
measurements come from `hybridperf.score.run_score.Measurements`, which are averaged by name.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from hybridperf.findings import visible
from hybridperf.score.projection import why_slow
from hybridperf.score.ranking import standing_of
from hybridperf.score.statistics import MEAN_INTERVAL, OLYMPIC_INTERVAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from hybridperf.score.official import Official

__all__ = ["METRICS", "TABLES", "Kind", "Metric", "Table", "metrics_of", "row_of"]

Kind = Literal["text", "whole", "number", "truth", "list"]
#: formatted tables: terminal tables of this suite's and MLPerf's results, HTML and Markdown of this
#: suite's, HTML of MLPerf's rounds, compare
Table = Literal["ours", "mlperf", "page", "markdown", "site", "compare"]
TABLES: Final[tuple[Table, ...]] = get_args(Table)


@dataclass(frozen=True, slots=True)
class Metric:
    """One column: its value, documentation and formatting."""

    name: str  #: column name in CSV, JSON and Parquet, unit included
    doc: str
    source: Callable[[Official], object]  #: returns None if unknown
    kind: Kind = "number"
    unit: str = ""
    better: Literal["lower", "higher"] | None = None
    heading: str = ""  #: column heading; empty for metrics in data files only
    form: str = ",.2f"  #: format specification for tables
    show: Callable[[Official], str] | None = None  #: replaces ``form``; "" if unknown
    tables: tuple[Table, ...] = TABLES  #: tables that show it, given a heading
    keep: int = 1  #: priority in narrow terminals: the lowest is dropped first, 9 never

    def text(self, result: Official) -> str:
        """Return the formatted value for ``result``; "" if unknown."""
        if self.show is not None:
            return self.show(result)
        value = self.source(result)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return ""
        return str(value) if isinstance(value, str | bool) else format(value, self.form)

    def key(self, result: Official) -> str:
        """Return the text by which a page's script sorts; "" if unknown."""
        value = self.source(result)
        if value is None or isinstance(value, list):
            return self.text(result) if value else ""
        return f"{value:.9g}" if isinstance(value, float) else str(value)


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


def _known(path: str) -> Callable[[Official], object]:
    """Return a function that follows the attributes of ``path``; None if one of them is None."""
    names = path.split(".")

    def source(result: Official) -> object:
        value: object = result
        for name in names:
            value = None if value is None else getattr(value, name)
        return value

    return source


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
    score = result.score
    if score.mean_s is None:
        return ""
    return f"{score.mean_s:,.2f} s{' or more' if score.missed else ''}"


def _method(result: Official) -> str | None:
    if result.score.interval_s is None:
        return None
    return MEAN_INTERVAL if result.own else OLYMPIC_INTERVAL


def _official(result: Official) -> str:
    if result.minutes is None:
        return result.no_score[0]
    return f"{result.minutes * 60:,.2f} s" if result.own else f"{result.minutes:.4f}"


def _busy_why(result: Official) -> str:
    return "; ".join(f"run {run.number}: {run.busy}" for run in result.score.completed if run.busy)


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


def _hint(result: Official) -> str | None:
    hint = why_slow(result.score.beside_projection)
    return str(hint) if hint else None


def _since(result: Official) -> str:
    since = _known("context.improvement.since")(result)
    return f"v{since}" if since else ""


def _ratio_interval(result: Official) -> str:
    improvement = result.context.improvement if result.context else None
    if improvement is None or improvement.interval is None:
        return ""
    return f"{improvement.interval.low:.3f} to {improvement.interval.high:.3f}"


_TERMINAL: Final[tuple[Table, ...]] = ("ours", "mlperf")
_ALL_RESULTS: Final[tuple[Table, ...]] = (*_TERMINAL, "site")
_OF_MLPERF: Final[tuple[Table, ...]] = ("mlperf", "site")

_ALL: Final = (
    Metric(
        "place_best",
        "the best place that the test allows; results that tie may share places",
        _known("place.best"),
        kind="whole",
        heading="place",
        show=lambda result: str(result.place or ""),
        tables=_ALL_RESULTS,
        keep=8,
    ),
    Metric(
        "place_worst",
        "the worst place that the test allows",
        _known("place.worst"),
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
        _known("score.org"),
        kind="text",
        heading="submitter",
        tables=_OF_MLPERF,
        keep=6,
    ),
    Metric(
        "system",
        "system and plan",
        _known("score.system"),
        kind="text",
        heading="system",
        tables=("mlperf",),
        keep=9,
    ),
    Metric(
        "benchmark",
        "task",
        _known("score.benchmark"),
        kind="text",
        heading="task",
        tables=_TERMINAL,
        keep=9,
    ),
    Metric(
        "version",
        "version of the task, with the data's hash where editions differ, and with the file's too "
        "for a user's own task; empty for MLPerf's benchmarks",
        _known("score.version"),
        kind="text",
    ),
    Metric("division", "closed or open", _known("division"), kind="text"),
    Metric(
        "plan",
        "parallel plan",
        _known("score.plan"),
        kind="text",
        heading="plan",
        tables=("ours",),
        keep=9,
    ),
    Metric(
        "level",
        "verification level: what the evidence of the result proves",
        _known("trust.level"),
        kind="text",
        heading="level",
        show=lambda result: result.trust.words,
        tables=("ours", "page", "markdown"),
        keep=6,
    ),
    Metric(
        "level_evidence",
        "evidence of the level: sandbox, key, organisation",
        _known("trust.evidence"),
        kind="text",
    ),
    Metric(
        "level_lacks",
        "what the result lacks for the next level",
        _known("trust.lacks"),
        kind="text",
    ),
    Metric(
        "trainer",
        "package that trained; empty for MLPerf's results",
        _known("score.trainer"),
        kind="text",
        heading="trainer",
        tables=("ours", "page", "markdown"),
        keep=2,
    ),
    Metric(
        "accelerators",
        "accelerators of the whole system, as its description states",
        _known("accelerators"),
        kind="whole",
        heading="accelerators",
        form=",d",
        tables=_OF_MLPERF,
        keep=5,
    ),
    Metric(
        "mean_s",
        "time to train: arithmetic mean of all completed runs, of MLPerf's results of the runs of "
        "the score; a lower bound where runs missed the target, which count as long as they ran",
        _known("score.mean_s"),
        unit="s",
        better="lower",
        heading="time to train",
        show=_time,
        tables=("ours", "compare"),
        keep=9,
    ),
    Metric(
        "missed",
        "runs of the mean that missed the target",
        _known("score.missed"),
        kind="whole",
        heading="missed",
        show=lambda result: f"{result.score.missed}" if result.score.missed else "",
        tables=("ours", "compare"),
        keep=8,
    ),
    Metric(
        "olympic_minutes",
        "MLPerf's mean, in minutes: of the runs in a row whose mean is the median, without the "
        "fastest and the slowest",
        _known("olympic_minutes"),
        unit="min",
        better="lower",
        heading="olympic",
        form=".4f",
        tables=_OF_MLPERF,
        keep=6,
    ),
    Metric(
        "interval_low_s",
        "lower end of the 95 % interval of the time to train: of mean_s, of MLPerf's results of "
        "the olympic mean; none for fewer than five runs",
        _known("score.interval_s.low"),
        unit="s",
        heading="95 % interval",
        show=_interval,
        tables=_ALL_RESULTS,
        keep=7,
    ),
    Metric(
        "interval_high_s",
        "upper end of that interval; null with a lower end where a missed run leaves it unbounded",
        _known("score.interval_s.high"),
        unit="s",
    ),
    Metric(
        "interval_method",
        "method of the interval",
        _method,
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
        _known("score.steady_samples_per_s"),
        unit="samples/s",
        better="higher",
        heading="steady samples/s",
        form=",.0f",
        tables=("page", "compare"),
    ),
    Metric(
        "real_tokens_per_s",
        "throughput while training in tokens without padding, where samples have different lengths",
        _known("score.real_tokens_per_s"),
        unit="tokens/s",
        better="higher",
        heading="real tokens/s",
        form=",.0f",
        tables=("page", "compare"),
        keep=2,
    ),
    Metric(
        "bubble",
        "share of device time waiting for other stages",
        _known("score.bubble"),
        better="lower",
        heading="bubble",
        form=".1%",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "exposed_communication",
        "share of device time waiting for an all-reduce",
        _known("score.exposed_communication"),
        better="lower",
        heading="exposed all-reduce",
        form=".1%",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "loader_samples_per_s",
        "maximum throughput of the data loaders of all ranks",
        _known("score.loader_samples_per_s"),
        unit="samples/s",
        better="higher",
    ),
    Metric(
        "compute_samples_per_s",
        "maximum throughput of training with free input",
        _known("score.compute_samples_per_s"),
        unit="samples/s",
        better="higher",
    ),
    Metric(
        "joules",
        "energy to the target: of processor packages and accelerators of all nodes, by their own "
        "counters; mean over the runs that count; none if a counter is missing in any of them, or "
        "one missed the target",
        _known("score.joules"),
        unit="J",
        better="lower",
        heading="joules",
        form=",.0f",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "samples_per_joule",
        "end to end, mean over the runs that count; none if a counter is missing in any of them",
        _known("score.samples_per_joule"),
        unit="samples/J",
        better="higher",
        heading="samples/J",
        form=".4g",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "projected_samples_per_s",
        "throughput while training, as projected before the runs",
        _known("score.beside_projection.projected_samples_per_s"),
        unit="samples/s",
        better="higher",
    ),
    Metric(
        "of_projected",
        "share of the projected rate that is reached while training, mean over the runs that "
        "count, or over the completed ones if none does",
        _known("score.beside_projection.share"),
        better="higher",
        heading="of projected",
        form=".0%",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "beside_projection",
        "seconds of a step, measured and projected, and the part that differs most",
        _known("score.beside_projection.sentence"),
        kind="text",
    ),
    Metric(
        "slow_steps",
        "what may make steps so much slower than projected, and what to do; empty if they are not",
        _hint,
        kind="text",
    ),
    Metric(
        "evaluations",
        "mean over the runs that count",
        _known("evaluations"),
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
        keep=9,
    ),
    Metric(
        "busy",
        "busy machine: completed runs during which, or right before which, others used the machine",
        lambda result: result.score.busy_runs,
        kind="text",
        heading="busy machine",
        tables=("ours",),
        keep=6,
    ),
    Metric(
        "busy_why",
        "what made the machine busy, by run",
        _busy_why,
        kind="text",
    ),
    Metric(
        "required_runs",
        "runs that the task asks for",
        _known("score.required_runs"),
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
        "runs that do not count, and why: attempts that were ended, and MLPerf's dropped runs",
        _known("dropped"),
        kind="list",
        heading="dropped",
        show=_dropped,
        tables=_OF_MLPERF,
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
        "ruleset that judged the logs",
        lambda result: result.validity.ruleset or None,
        kind="text",
    ),
    Metric(
        "rcp_factor",
        "factor by which the reference convergence points multiply the time",
        _known("verdict.factor"),
        heading="RCP",
        form=".5f",
        tables=_ALL_RESULTS,
        keep=3,
    ),
    Metric(
        "official_minutes",
        "MLPerf's score: olympic_minutes times rcp_factor; none where logs are invalid or the test "
        "is failed",
        _known("minutes"),
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
    Metric(
        "rcp_mode",
        "where the factor comes from: rules, compat or published",
        _known("mode"),
        kind="text",
    ),
    Metric(
        "rcp_passed",
        "whether convergence was not too fast; unknown where nothing was tested",
        _known("verdict.passed"),
        kind="truth",
    ),
    Metric(
        "rcp_reason",
        "reference point of the comparison, or why nothing was compared",
        _known("verdict.how"),
        kind="text",
    ),
    Metric(
        "rcp_batch_size",
        "global batch size of the runs that reached the target, where they agree",
        _known("batch_size"),
        kind="whole",
    ),
    Metric(
        "rcp_counted_by",
        "key of the log by which convergence is counted",
        _known("counted_by"),
        kind="text",
    ),
    Metric(
        "rcp_mean",
        "epochs or samples to converge, olympic mean, as the benchmark counts",
        _known("verdict.mean"),
    ),
    Metric(
        "rcp_both",
        "the outcomes by the rules and by MLPerf's tool of the round, of published results that "
        "--rcp-set tests",
        _known("both_words"),
        kind="text",
    ),
    Metric(
        "rcp_reference_mean",
        "olympic mean of the reference's epochs or samples to converge",
        _known("verdict.reference_mean"),
    ),
    Metric("rcp_limit", "the lowest rcp_mean that passes", _known("verdict.limit")),
    Metric(
        "system_name",
        "as the description of the system states",
        lambda result: result.system_name or None,
        kind="text",
        heading="system",
        tables=("site",),
    ),
    Metric(
        "availability",
        "cloud, on-premise, preview or research, as the description states",
        lambda result: result.availability or None,
        kind="text",
        heading="available",
        tables=("site",),
    ),
    Metric(
        "accelerator",
        "as the catalogue of devices names it, or else as described; else the processor",
        lambda result: result.accelerator or None,
        kind="text",
        heading="accelerator",
        tables=("site",),
    ),
    Metric(
        "software",
        "framework and its stack, as the description states",
        lambda result: result.software or None,
        kind="text",
        heading="software",
        tables=("site",),
    ),
    Metric(
        "accelerator_minutes",
        "official_minutes times accelerators",
        _known("accelerator_minutes"),
        unit="min",
        better="lower",
        heading="accelerator-minutes",
        form=",.1f",
        tables=("site",),
    ),
    Metric(
        "efficiency_time",
        "efficiency by time to train, relative to the smallest system of the same submitter, round "
        "and accelerator; 1 is linear",
        _known("context.efficiency.by_time_to_train"),
        better="higher",
        heading="efficiency, time",
        form=".1%",
        tables=("site",),
    ),
    Metric(
        "efficiency_throughput",
        "efficiency by end-to-end samples per second",
        _known("context.efficiency.by_throughput"),
        better="higher",
        heading="efficiency, samples/s",
        form=".1%",
        tables=("site",),
    ),
    Metric(
        "efficiency_from",
        "system that the efficiency is relative to",
        lambda result: (result.context.smallest or None) if result.context else None,
        kind="text",
        heading="relative to",
        tables=("site",),
    ),
    Metric(
        "since_round",
        "last round before with a result of the submitter; the best results of both are compared",
        _known("context.improvement.since"),
        kind="text",
        heading="since",
        show=_since,
        tables=("site",),
    ),
    Metric(
        "since_system",
        "system of that result",
        _known("context.improvement.system"),
        kind="text",
        heading="system before",
        tables=("site",),
    ),
    Metric(
        "since_accelerator",
        "accelerator of that result",
        _known("context.improvement.accelerator"),
        kind="text",
        heading="accelerator before",
        tables=("site",),
    ),
    Metric(
        "since_ratio",
        "mean time over the mean time of that result",
        _known("context.improvement.ratio"),
        better="lower",
        heading="time ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_ratio_low",
        "lower end of the 95 % interval of since_ratio",
        _known("context.improvement.interval.low"),
        heading="95 % interval",
        show=_ratio_interval,
        tables=("site",),
    ),
    Metric(
        "since_ratio_high",
        "upper end of that interval",
        _known("context.improvement.interval.high"),
    ),
    Metric(
        "since_verdict",
        "faster, slower, tie or undecided, by Welch's test at 5 %",
        _known("context.improvement.verdict"),
        kind="text",
        heading="verdict",
        tables=("site",),
    ),
    Metric(
        "since_samples_ratio",
        "samples to converge, new over old",
        _known("context.improvement.why.samples_ratio"),
        better="lower",
        heading="samples ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_accelerator_seconds_ratio",
        "accelerator-seconds per sample, new over old",
        _known("context.improvement.why.accelerator_seconds_per_sample_ratio"),
        better="lower",
        heading="accelerator-seconds per sample ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_accelerators_ratio",
        "accelerators, new over old; since_ratio is the product of the other two over this",
        _known("context.improvement.why.accelerators_ratio"),
        heading="accelerators ÷",
        form=".3f",
        tables=("site",),
    ),
    Metric(
        "since_cause",
        "what contributed most to a faster or slower result: hardware (another accelerator), "
        "software, scale or convergence",
        _known("context.improvement.cause"),
        kind="text",
        heading="mostly by",
        tables=("site",),
    ),
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _ALL}
