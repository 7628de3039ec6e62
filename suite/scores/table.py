"""Scores as one table: the same columns in the terminal, CSV, JSON and the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from suite.scores.score import ResultScore

__all__ = ["COLUMNS", "score_row", "score_table"]

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


def score_table(scores: Iterable[ResultScore]) -> pd.DataFrame:
    """Return one row a result, with the columns of `COLUMNS`."""
    import pandas as pd

    return pd.DataFrame([score_row(score) for score in scores], columns=list(COLUMNS))
