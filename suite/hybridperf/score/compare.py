"""Compare two results: significance, size and causes of the difference."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.plan import deviations_of
from hybridperf.score.history import efficiency_of
from hybridperf.score.metrics import row_of
from hybridperf.score.ranking import (
    ALPHA,
    MEANS,
    Decision,
    decide,
    means_of,
    standing_of,
)
from hybridperf.score.statistics import RATIO_INTERVAL, WELCH_TEST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.score.official import Efficiency, Official

__all__ = ["Comparison", "compare"]

_MISSED: Final = "mlperf.target:"  #: begins an error of a log that only missed the target


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of result B with result A; ratios of times are B over A."""

    a: Official
    b: Official
    decision: Decision
    efficiency: Efficiency | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Return the comparison as a JSON-serialisable dictionary."""
        decision, test, interval = self.decision, self.decision.test, self.decision.interval
        return {
            "a": _side(self.a),
            "b": _side(self.b),
            "difference_s": decision.difference_s,
            "ratio": decision.ratio,
            "ratio_low": interval.low if interval else None,
            "ratio_high": interval.high if interval else None,
            "ratio_interval": RATIO_INTERVAL,
            "means": MEANS,
            "test": WELCH_TEST,
            "t": test.t if test else None,
            "degrees_of_freedom": test.degrees if test else None,
            "p_value": test.p_value if test else None,
            "alpha": ALPHA,
            "verdict": decision.verdict,
            "why": asdict(decision.why) if decision.why else None,
            "scaling_efficiency": asdict(self.efficiency) if self.efficiency else None,
            "notes": list(self.notes),
        }


def compare(a: Official, b: Official) -> Comparison:
    """Compare result ``b`` with result ``a``, using every run that makes them."""
    return Comparison(a, b, decide(a, b), efficiency_of(a, b), tuple(_notes(a, b)))


def _notes(a: Official, b: Official) -> list[str]:
    notes = []
    for name, side in (("A", a), ("B", b)):
        completed, compared = len(side.score.completed), len(side.score.compared)
        if compared < completed:
            runs = f"{compared} of {completed} runs"
            notes.append(f"{name}: {runs} make MLPerf's score: the median window")
        if deviations := deviations_of(side.score.plan):
            fields = ", ".join(deviations)
            notes.append(f"{name}: computes something else than one process: {fields}")
        notes += [f"{name}: {words}" for words in _bounded(side)]
        standing, why = standing_of(side)
        if standing not in {"ranked", "provisional", "did not converge"}:
            notes.append(f"{name}: no official score and no place: {why}")
    if a.division != b.division:
        notes.append(f"other division: {a.division or 'unknown'} and {b.division or 'unknown'}")
    if a.score.edition != b.score.edition:
        rounds = (f"v{each.score.edition}" if each.score.edition else "none" for each in (a, b))
        notes.append(f"other round of MLPerf: {' and '.join(rounds)}")
    counts = a.accelerators, b.accelerators
    if None not in counts and counts[0] != counts[1] and a.accelerator != b.accelerator:
        notes.append(
            f"no scaling efficiency between accelerators that differ: {a.accelerator or 'unknown'} "
            f"and {b.accelerator or 'unknown'}"
        )
    return notes


def _bounded(side: Official) -> Iterator[str]:
    """Yield why runs enter the mean with lower bounds of their times."""
    runs = side.score.compared
    out = [run for run in runs if run.completion == "missed"]
    broken = [run for run in out if run.invalid and not run.invalid.startswith(_MISSED)]
    if missed := len(out) - len(broken):
        yield f"{missed} of {len(runs)} runs missed the target: the mean is a lower bound"
    if broken:
        yield f"{len(broken)} of {len(runs)} runs have an invalid log: {broken[0].invalid}"


def _side(side: Official) -> dict[str, object]:
    means = means_of(side)
    return row_of(side) | {
        "mean_s": means.time_s if means else None,
        "times_s": [run.least_s for run in side.score.compared],
        "idle_share": side.idle_share,
    }
