"""Every attempt at a result as a line for people, and the hashes that pin it down."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from suite.logs import keys
from suite.logs.package import result_names
from suite.report.facts import number_of, text_of, texts_of

if TYPE_CHECKING:
    from suite.logs.package import SealedRun
    from suite.report.entry import Entry
    from suite.scores.run_score import RunScore
    from suite.scores.score import ResultScore

__all__ = ["Attempt", "attempts_of", "hashes_of"]

_LONGEST_GAP_S: Final = 1e9  #: a log of unknown origin may say more
_SHARED: Final = {
    "task": ("task", "sha256"),
    "data": ("data_sha256",),
    "harness": ("code", "suite_sha256"),
    "trainer": ("code", "trainer_sha256"),
    "commit": ("code", "commit"),
    "system description": ("system", "sha256"),
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt and what became of it."""

    run: RunScore
    epochs: int | None
    quality: float | None  #: of the last evaluation
    rescored: float | None  #: the harness's own, on the final weights
    verdict: str  #: that it counts, or why not


def attempts_of(entry: Entry) -> list[Attempt]:
    """Return every attempt, by number."""
    verdicts = _verdicts(entry.score)
    return [
        Attempt(
            run=run,
            epochs=run.curve[-1].epoch if run.curve else None,
            quality=run.curve[-1].quality if run.curve else None,
            rescored=number_of(sealed, "rescoring", "quality"),
            verdict=(verdicts.get(run.number) or _reason(sealed, run)) + _interruptions(sealed),
        )
        for sealed, run in zip(entry.result.runs, entry.score.runs, strict=True)
    ]


def hashes_of(entry: Entry) -> list[tuple[str, str]]:
    """Return what was hashed and its hashes: shared ones once each, then every log's."""
    runs = entry.result.runs
    rows = [(name, text) for name, path in _SHARED.items() for text in texts_of(runs, *path)]
    logs = ((result_names(run.number)[0], text_of(run, "log", "sha256")) for run in runs)
    return rows + [(name, text) for name, text in logs if text is not None]


def _verdicts(score: ResultScore) -> dict[int, str]:
    """Return what the olympic mean makes of each completed run."""
    if not any(run.counts for run in score.runs):
        return {run.number: "too few runs for a mean" for run in score.completed}
    verdicts = {
        run.number: "counts" if run.counts else "outside the median window of runs"
        for run in score.completed
    }
    dropped = [run for run in score.window if not run.counts]
    for run, end in zip(
        sorted(dropped, key=lambda run: run.time_to_train_s), ("fastest", "slowest"), strict=True
    ):
        missed = "" if math.isfinite(run.time_to_train_s) else ": missed the target"
        verdicts[run.number] = f"{end}, dropped{missed}"
    return verdicts


def _interruptions(sealed: SealedRun) -> str:
    """Return how often the run went on after it had been interrupted; its clock never stopped."""
    resumed = sealed.log.all(keys.RESUMED)
    gaps = [entry.value.get("gap_s") for entry in resumed if isinstance(entry.value, dict)]
    gap_s = sum(gap for gap in gaps if isinstance(gap, int | float) and 0 <= gap < _LONGEST_GAP_S)
    times = "once" if len(resumed) == 1 else f"{len(resumed)} times"
    return f"; resumed {times}, after {gap_s:.1f} s" if resumed else ""


def _reason(sealed: SealedRun, run: RunScore) -> str:
    reason = text_of(sealed, "reason")
    return f"did not complete: {reason or run.outcome}"
