"""Declare the metrics of the test against reference convergence points."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from hybridperf.score.metric import Metric

__all__ = ["RCP"]

RCP: Final = (
    Metric(
        "rcp_mode",
        "where the factor comes from: rules, compat or published",
        attrgetter("mode"),
        kind="text",
    ),
    Metric(
        "rcp_passed",
        "whether convergence was not too fast; unknown where nothing was tested",
        attrgetter("verdict.passed"),
        kind="truth",
    ),
    Metric(
        "rcp_reason",
        "what it was compared with, or why it was not",
        attrgetter("verdict.how"),
        kind="text",
    ),
    Metric(
        "rcp_batch_size",
        "of the runs that reached the target, where they agree",
        attrgetter("batch_size"),
        kind="whole",
    ),
    Metric(
        "rcp_counted_by",
        "key of the log by which convergence is counted",
        attrgetter("counted_by"),
        kind="text",
    ),
    Metric(
        "rcp_mean",
        "epochs or samples to converge, olympic mean, as the benchmark counts",
        attrgetter("verdict.mean"),
    ),
    Metric(
        "rcp_both",
        "the outcomes by the rules and by MLPerf's tool of the round, of published results that "
        "--rcp-set tests",
        attrgetter("both_words"),
        kind="text",
    ),
    Metric("rcp_reference_mean", "the same of the reference", attrgetter("verdict.reference_mean")),
    Metric("rcp_limit", "the lowest rcp_mean that passes", attrgetter("verdict.limit")),
)
