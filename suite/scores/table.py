"""The columns of scores: the same in the terminal, CSV, JSON, Parquet and the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from suite.scores.score import ResultScore

__all__ = ["ALL_COLUMNS", "COLUMNS", "score_row"]

COLUMNS: Final = {
    "submitter": "organisation",
    "system": "system and plan",
    "benchmark": "task",
    "division": "closed or open",
    "plan": "parallel plan",
    "runs": "completed runs",
    "required_runs": "runs that the task asks for",
    "attempts": "all attempts, ended ones included",
    "olympic_mean_s": "time to train: mean without the fastest and the slowest run",
    "interval_low_s": "lower end of its 95 % interval",
    "interval_high_s": "upper end of its 95 % interval",
    "samples_to_target": "mean over the runs that count",
    "throughput_samples_per_s": "end to end, mean over the runs that count",
    "steady_samples_per_s": "while training, mean over the runs that count",
    "bubble": "share of device time waiting for other stages",
    "exposed_communication": "share of device time waiting for an all-reduce",
}
#: what `hybridperf score` tells of a result, ours or MLPerf's
ALL_COLUMNS: Final = COLUMNS | {
    "version": "of the task; with the data's hash where editions differ, and a user's own with its "
    "file's too; empty for MLPerf's benchmarks",
    "accelerators": "as the system's description says",
    "loader_samples_per_s": "what the loaders of all ranks could deliver",
    "appetite_samples_per_s": "what training could consume if input cost nothing",
    "evaluations": "mean over the runs that count",
    "interval_method": "how the interval is made, with its seed",
    "olympic_minutes": "time to train: mean without the fastest and the slowest run",
    "rcp_factor": "by which the reference convergence points multiply the time",
    "official_minutes": "olympic_minutes times rcp_factor, where the test is not failed",
    "rcp_mode": "where the factor comes from: rules, compat or published",
    "rcp_passed": "whether convergence was not too fast; unknown where nothing was tested",
    "rcp_reason": "what it was compared with, or why it was not",
    "rcp_batch_size": "of the runs that reached the target, where they agree",
    "rcp_counted_by": "key of the log that says what convergence took",
    "rcp_mean": "what it took, olympic mean, in the unit of the benchmark",
    "rcp_reference_mean": "what it takes the reference",
    "rcp_limit": "the lowest rcp_mean that passes",
    "dropped": "runs that do not count, and why",
    "rank_best": "the best rank that the interval allows; results that tie share a range",
    "rank_worst": "the worst one",
}


def score_row(score: ResultScore) -> dict[str, object]:
    """Return ``score`` as one row with the columns of `COLUMNS`; unknown values are None."""
    mean_s = score.olympic_mean_s
    return {
        "submitter": score.org,
        "system": score.system,
        "benchmark": score.benchmark,
        "division": score.division,
        "plan": score.plan,
        "runs": len(score.completed),
        "required_runs": score.required_runs,
        "attempts": len(score.runs),
        "olympic_mean_s": mean_s if mean_s is not None and math.isfinite(mean_s) else None,
        "interval_low_s": score.interval_s.low if score.interval_s else None,
        "interval_high_s": score.interval_s.high if score.interval_s else None,
        "samples_to_target": score.samples_to_target,
        "throughput_samples_per_s": score.throughput_samples_per_s,
        "steady_samples_per_s": score.steady_samples_per_s,
        "bubble": score.bubble,
        "exposed_communication": score.exposed_communication,
    }
