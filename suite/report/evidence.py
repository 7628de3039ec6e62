"""What speaks for a result beyond its own word: intact chains, and quality that came back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from suite.report.facts import number_of

if TYPE_CHECKING:
    from suite.report.entry import Entry

__all__ = ["Evidence", "evidence_of"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counts over the completed runs of a result."""

    completed: int
    chained: int  #: their log lines are chained by hashes and every hash is right
    rescored: int  #: the harness scored their final weights again
    largest_difference: float | None  #: between the trainer's quality and the harness's own


def evidence_of(entry: Entry) -> Evidence:
    """Return what the logs and manifests of the completed runs show."""
    numbers = {run.number for run in entry.score.completed}
    runs = [run for run in entry.result.runs if run.number in numbers]
    pairs = [
        (number_of(run, "rescoring", "reported"), number_of(run, "rescoring", "quality"))
        for run in runs
    ]
    differences = [abs(one - two) for one, two in pairs if one is not None and two is not None]
    return Evidence(
        completed=len(runs),
        chained=sum(run.log.chained for run in runs),
        rescored=len(differences),
        largest_difference=max(differences, default=None),
    )
