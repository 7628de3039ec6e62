from __future__ import annotations

from typing import TYPE_CHECKING

from suite.report.attempts import attempts_of, hashes_of
from suite.report.entry import read_entries
from suite.report.evidence import evidence_of

if TYPE_CHECKING:
    from tests.report.conftest import Submissions


def test_every_attempt_says_whether_it_counts_or_why_not(submissions: Submissions) -> None:
    outcomes = {2: "interrupted", 5: "target_missed"}
    submissions.add([10, 11, 12, 13, 14], outcomes=outcomes)
    (entry,) = read_entries(submissions.root)

    verdicts = [attempt.verdict for attempt in attempts_of(entry)]

    assert verdicts == [
        "fastest, dropped",
        "did not complete: it was interrupted",
        "counts",
        "counts",
        "slowest, dropped: missed the target",
    ]
    assert [attempt.epochs for attempt in attempts_of(entry)] == [8, 4, 8, 8, 8]


def test_runs_outside_the_median_window_say_so(submissions: Submissions) -> None:
    submissions.add([10, 20, 30, 40, 50, 60, 70])
    (entry,) = read_entries(submissions.root)

    verdicts = [attempt.verdict for attempt in attempts_of(entry)]

    outside = "outside the median window of runs"
    assert verdicts == [
        outside,
        "fastest, dropped",
        *["counts"] * 3,
        "slowest, dropped",
        outside,
    ]


def test_two_runs_make_no_mean(submissions: Submissions) -> None:
    submissions.add([10, 11])
    (entry,) = read_entries(submissions.root)

    assert {attempt.verdict for attempt in attempts_of(entry)} == {"too few runs for a mean"}


def test_hashes_that_runs_share_stand_once(submissions: Submissions) -> None:
    submissions.add([10, 11])
    (entry,) = read_entries(submissions.root)

    names = [name for name, _ in hashes_of(entry)]

    assert names == ["task", "data", "harness", "trainer", "result_1.txt", "result_2.txt"]


def test_evidence_counts_completed_runs(submissions: Submissions) -> None:
    folder = submissions.add([10, 11, 12], outcomes={1: "interrupted"})
    log = folder / "result_2.txt"
    log.write_text(log.read_text().replace("closed", "open"))
    (entry,) = read_entries(submissions.root)

    evidence = evidence_of(entry)

    assert (evidence.completed, evidence.chained, evidence.rescored) == (2, 1, 2)
    assert evidence.largest_difference is not None
    assert round(evidence.largest_difference, 4) == 0.0016
