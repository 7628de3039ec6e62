"""Whether two results differ, by how much, and why."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from suite.scores.permutation import Permutation, permutation_test
from suite.scores.welch import TEST, Welch, ratio_interval, welch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from suite.scores.interval import Interval
    from suite.scores.official import Official
    from suite.scores.run_score import RunScore

__all__ = ["Comparison", "Efficiency", "Why", "compare"]

ALPHA: Final = 0.05
MEANS: Final = "plain means over the runs that reached the target"


@dataclass(frozen=True, slots=True)
class Why:
    """A ratio of mean times as a product: samples to converge times seconds per sample."""

    samples_ratio: float
    seconds_per_sample_ratio: float  #: seconds per sample: all time over all samples


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How much of the accelerators that B has more than A turned into speed."""

    accelerators: tuple[int, int]
    #: samples per second and accelerator, end to end, mean over the runs that count; B over A
    by_throughput: float | None
    by_time_to_train: float | None  #: accelerators times olympic mean; A over B


@dataclass(frozen=True, slots=True)
class Comparison:
    """B compared with A; ratios are B over A."""

    a: Official
    b: Official
    difference_s: float | None
    ratio: float | None
    interval: Interval | None  #: of the ratio, 95 %
    test: Welch | None  #: the verdict's
    permutation: Permutation | None
    verdict: Literal["faster", "slower", "tie", "undecided"]  #: what B is, compared with A
    why: Why | None
    efficiency: Efficiency | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Return the comparison, safe as JSON."""
        return {
            "a": _side(self.a),
            "b": _side(self.b),
            "difference_s": self.difference_s,
            "ratio": self.ratio,
            "ratio_low": self.interval.low if self.interval else None,
            "ratio_high": self.interval.high if self.interval else None,
            "means": MEANS,
            "test": TEST,
            "t": self.test.t if self.test else None,
            "degrees_of_freedom": self.test.degrees if self.test else None,
            "p_value": self.test.p_value if self.test else None,
            "permutation_test": self.permutation.method if self.permutation else None,
            "permutation_p_value": self.permutation.p_value if self.permutation else None,
            "alpha": ALPHA,
            "verdict": self.verdict,
            "why": asdict(self.why) if self.why else None,
            "scaling_efficiency": asdict(self.efficiency) if self.efficiency else None,
            "notes": list(self.notes),
        }


def compare(a: Official, b: Official) -> Comparison:
    """Compare result ``b`` with result ``a`` by the runs of each that reached the target."""
    runs_a, runs_b = _reached(a), _reached(b)
    times_a, times_b = ([run.time_to_train_s for run in runs] for runs in (runs_a, runs_b))
    known = bool(times_a and times_b)
    difference = _mean(times_b) - _mean(times_a) if known else None
    test, permutation = welch(times_a, times_b), permutation_test(times_a, times_b)
    return Comparison(
        a=a,
        b=b,
        difference_s=difference,
        ratio=_mean(times_b) / _mean(times_a) if known and _mean(times_a) > 0 else None,
        interval=ratio_interval(times_a, times_b) if known else None,
        test=test,
        permutation=permutation,
        verdict=_verdict(test, difference),
        why=_why(runs_a, runs_b),
        efficiency=_efficiency(a, b),
        notes=(*_notes(a, b), *_disagreement(test, permutation)),
    )


def _verdict(
    test: Welch | None, difference: float | None
) -> Literal["faster", "slower", "tie", "undecided"]:
    if test is None or difference is None:
        return "undecided"
    if test.p_value >= ALPHA:
        return "tie"
    return "faster" if difference < 0 else "slower"


def _why(runs_a: Sequence[RunScore], runs_b: Sequence[RunScore]) -> Why | None:
    samples = [_mean([run.samples_to_target for run in runs]) for runs in (runs_a, runs_b)]
    times = [_mean([run.time_to_train_s for run in runs]) for runs in (runs_a, runs_b)]
    if not all(each > 0 for each in (*samples, *times)):
        return None
    ratio = samples[1] / samples[0]
    return Why(ratio, (times[1] / samples[1]) / (times[0] / samples[0]))


def _efficiency(a: Official, b: Official) -> Efficiency | None:
    if not a.accelerators or not b.accelerators or a.accelerators == b.accelerators:
        return None
    more = b.accelerators / a.accelerators
    rates = a.score.throughput_samples_per_s, b.score.throughput_samples_per_s
    minutes = a.olympic_minutes, b.olympic_minutes
    return Efficiency(
        (a.accelerators, b.accelerators),
        rates[1] / rates[0] / more if rates[0] and rates[1] else None,
        minutes[0] / minutes[1] / more if minutes[0] and minutes[1] else None,
    )


def _notes(a: Official, b: Official) -> list[str]:
    notes = []
    for name, side in (("A", a), ("B", b)):
        completed, window = len(side.score.completed), len(side.score.window)
        if window < completed:
            notes.append(f"{name}: {window} of {completed} runs make the result: the median window")
        if missed := window - len(_reached(side)):
            notes.append(f"{name}: {missed} of {window} runs left out: missed the target")
    if a.division != b.division:
        notes.append(f"other division: {a.division or 'unknown'} and {b.division or 'unknown'}")
    return notes


def _disagreement(test: Welch | None, permutation: Permutation | None) -> list[str]:
    if not test or not permutation:
        return []
    if (test.p_value < ALPHA) == (permutation.p_value < ALPHA):
        return []
    return ["the permutation test does not agree: take the verdict as weak, and make more runs"]


def _side(side: Official) -> dict[str, object]:
    row = side.row()
    names = ("submitter", "system", "benchmark", "division", "accelerators", "runs", "rcp_factor")
    times = [run.time_to_train_s for run in _reached(side)]
    return {name: row[name] for name in names} | {
        "times_s": times,
        "mean_s": _mean(times) if times else None,
        "olympic_minutes": side.olympic_minutes,
        "official_minutes": side.minutes,
        "samples_to_target": row["samples_to_target"],
        "throughput_samples_per_s": row["throughput_samples_per_s"],
        "idle_share": side.idle_share,
    }


def _reached(side: Official) -> list[RunScore]:
    return [run for run in side.score.window if run.completion == "reached"]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
