"""Declare the metrics that set a result beside its projection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hybridperf.score.metric import Metric
from hybridperf.score.slow_steps import why_slow

if TYPE_CHECKING:
    from hybridperf.score.official import Official

__all__ = ["BESIDE_PROJECTION"]


def _share(result: Official) -> float | None:
    beside = result.score.beside_projection
    return beside.share if beside else None


def _projected(result: Official) -> float | None:
    beside = result.score.beside_projection
    return beside.projected_samples_per_s if beside else None


def _sentence(result: Official) -> str | None:
    beside = result.score.beside_projection
    return beside.sentence if beside else None


def _hint(result: Official) -> str | None:
    hint = why_slow(result.score.beside_projection)
    return str(hint) if hint else None


BESIDE_PROJECTION: Final = (
    Metric(
        "projected_samples_per_s",
        "while training, as projected before the runs",
        _projected,
        unit="samples/s",
        better="higher",
    ),
    Metric(
        "of_projected",
        "share of the projected rate that is reached while training, mean over the runs that "
        "count, or over the completed ones if none does",
        _share,
        better="higher",
        heading="of projected",
        form=".0%",
        tables=("ours", "page", "compare"),
        keep=2,
    ),
    Metric(
        "beside_projection",
        "seconds of a step, measured and projected, and the part that differs most",
        _sentence,
        kind="text",
    ),
    Metric(
        "slow_steps",
        "what may make steps so much slower than projected, and what to do; empty if they are not",
        _hint,
        kind="text",
    ),
)
