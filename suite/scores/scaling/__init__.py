"""Scaling efficiency: how much of the devices that a result has more than its base became speed."""

from suite.scores.scaling.claim import CLAIM, Claim, Figure, claim_of, read_claim, verify_claim
from suite.scores.scaling.intervals import METHOD
from suite.scores.scaling.metrics import METRICS, Metric, metric_words
from suite.scores.scaling.scale import Efficiency, Scaled, Scaling, scale
from suite.scores.scaling.side import Side, side_of
from suite.scores.scaling.split import CAUSES, SAMPLES, Split

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
