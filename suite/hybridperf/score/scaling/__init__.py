"""Compute scaling efficiency: the speedup of a result over the ratio of device counts."""

from hybridperf.score.scaling.claim import CLAIM, Claim, Figure, claim_of, read_claim, verify_claim
from hybridperf.score.scaling.scale import Efficiency, Scaled, Scaling, scale
from hybridperf.score.scaling.side import Side, side_of
from hybridperf.score.scaling.speed import METHOD, METRICS, Metric, metric_words
from hybridperf.score.scaling.split import CAUSES, SAMPLES, Split

__all__ = [
    "CAUSES",
    "CLAIM",
    "METHOD",
    "METRICS",
    "SAMPLES",
    "Claim",
    "Efficiency",
    "Figure",
    "Metric",
    "Scaled",
    "Scaling",
    "Side",
    "Split",
    "claim_of",
    "metric_words",
    "read_claim",
    "scale",
    "side_of",
    "verify_claim",
]
