"""Extract attempts, hashes, evidence and commands of a result from its logs and manifests.

Manifests are untrusted: a fact of another type than its function returns is treated as unknown.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hybridperf.log import keys
from hybridperf.log.package import result_names
from hybridperf.untrusted import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hybridperf.log.package import Result, SealedRun
    from hybridperf.report.judged import Entry
    from hybridperf.score.run_score import RunScore
    from hybridperf.score.score import ResultScore

__all__ = [
    "Attempt",
    "Evidence",
    "attempts_of",
    "evidence_of",
    "hashes_of",
    "reproduce_commands",
]

_LONGEST_GAP_S: Final = 1e9  #: limit for untrusted logs
_SHARED: Final = {
    "task": ("task", "sha256"),
    "data": ("data_sha256",),
    "harness": ("code", "suite_sha256"),
    "trainer": ("code", "trainer_sha256"),
    "commit": ("code", "commit"),
    "system description": ("system", "sha256"),
}
# Users copy this text from an untrusted manifest to a shell: no shell metacharacters.
_RUNS: Final = re.compile(r" --runs ([0-9]{1,9})(?![^ ])")
_HARMLESS: Final = re.compile(r"hybridperf run [a-z0-9][A-Za-z0-9 =,._/+-]{0,500}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt and its outcome."""

    run: RunScore
    epochs: int | None
    quality: float | None  #: of the last evaluation
    rescored: float | None  #: quality of the final weights, measured by the harness
    verdict: str  #: scored, or the reason why not


def attempts_of(entry: Entry) -> list[Attempt]:
    """Return every attempt, sorted by number."""
    verdicts = _verdicts(entry.score)
    return [
        Attempt(
            run=run,
            epochs=run.curve[-1].epoch if run.curve else None,
            quality=run.curve[-1].quality if run.curve else None,
            rescored=_number_of(sealed, "rescoring", "quality"),
            verdict=(verdicts.get(run.number) or _reason(sealed, run)) + _interruptions(sealed),
        )
        for sealed, run in zip(entry.result.runs, entry.score.runs, strict=True)
    ]


def hashes_of(entry: Entry) -> list[tuple[str, str]]:
    """Return (label, SHA-256) pairs: the distinct shared hashes, then one per log."""
    runs = entry.result.runs
    rows = [(name, text) for name, path in _SHARED.items() for text in _texts_of(runs, *path)]
    logs = ((result_names(run.number)[0], _text_of(run, "log", "sha256")) for run in runs)
    return rows + [(name, text) for name, text in logs if text is not None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts over the completed runs of a result."""

    completed: int
    chained: int  #: runs with a correct hash on every log line
    rescored: int  #: runs with final weights re-evaluated by the harness
    largest_difference: float | None  #: between trainer's and harness's quality


def evidence_of(entry: Entry) -> Evidence:
    """Return the evidence in the logs and manifests of the completed runs."""
    numbers = {run.number for run in entry.score.completed}
    runs = [run for run in entry.result.runs if run.number in numbers]
    pairs = [
        (_number_of(run, "rescoring", "reported"), _number_of(run, "rescoring", "quality"))
        for run in runs
    ]
    differences = [abs(one - two) for one, two in pairs if one is not None and two is not None]
    return Evidence(
        completed=len(runs),
        chained=sum(run.log.chained for run in runs),
        rescored=len(differences),
        largest_difference=max(differences, default=None),
    )


def reproduce_commands(result: Result) -> list[str]:
    """Return the distinct commands in the manifests that are plain ``hybridperf run`` commands.

    Of those that differ in the number of runs alone, the one that makes the most.
    """
    most: dict[str, tuple[int, str]] = {}
    for command in filter(_HARMLESS.fullmatch, _texts_of(result.runs, "command")):
        runs = int(found[1]) if (found := _RUNS.search(command)) else 0
        kind = _RUNS.sub("", command)
        most[kind] = max(most.get(kind, (0, "")), (runs, command))
    return [command for _, command in most.values()]


def _text_of(run: SealedRun, *keys: str) -> str | None:
    """Return the string at nested ``keys`` of the manifest; None if missing or empty."""
    value = run.fact(*keys)
    return value if isinstance(value, str) and value else None


def _number_of(run: SealedRun, *keys: str) -> float | None:
    """Return the number at nested ``keys`` of the manifest; None if missing."""
    value = number(run.fact(*keys))
    return None if value is None else float(value)


def _texts_of(runs: Iterable[SealedRun], *keys: str) -> list[str]:
    """Return the distinct strings at nested ``keys`` of the manifests, in order of the runs."""
    found = (_text_of(run, *keys) for run in runs)
    return list(dict.fromkeys(text for text in found if text is not None))


def _verdicts(score: ResultScore) -> dict[int, str]:
    """Return the role of each completed run in the olympic mean, by run number."""
    if not any(run.counts for run in score.runs):
        return {run.number: "too few runs for a mean" for run in score.completed}
    verdicts = {
        run.number: "counts" if run.counts else "outside the median window of runs"
        for run in score.completed
    }
    dropped = [run for run in score.window if not run.counts]
    ends = ("fastest",) * score.drops + ("slowest",) * score.drops
    in_order = sorted(dropped, key=lambda run: run.time_to_train_s)
    for run, end in zip(in_order, ends, strict=True):
        missed = "" if math.isfinite(run.time_to_train_s) else ": missed the target"
        verdicts[run.number] = f"{end}, dropped{missed}"
    return verdicts


def _interruptions(sealed: SealedRun) -> str:
    """Return the number of resumptions in words; the clock runs during interruptions."""
    resumed = sealed.log.all(keys.RESUMED)
    gaps = [entry.value.get("gap_s") for entry in resumed if isinstance(entry.value, dict)]
    gap_s = sum(number(gap, 0, _LONGEST_GAP_S) or 0.0 for gap in gaps)
    times = "once" if len(resumed) == 1 else f"{len(resumed)} times"
    return f"; resumed {times}, after {gap_s:.1f} s" if resumed else ""


def _reason(sealed: SealedRun, run: RunScore) -> str:
    reason = _text_of(sealed, "reason")
    return f"did not complete: {reason or run.outcome}"
