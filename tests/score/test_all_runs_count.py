"""On our own boards every completed run counts, and a pair of results has one ratio and one p."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hybridperf.log.package import find_packages
from hybridperf.report.judgement import judged_scores
from hybridperf.report.tables import p_value
from hybridperf.score.compare import compare
from hybridperf.score.ranking import decide, standing_of, with_places
from hybridperf.score.statistics import estimate, median_window, welch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hybridperf.score.official import Official

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def published() -> list[Official]:
    return with_places(judged_scores(find_packages(ROOT / "submissions")))


def _pairs(results: list[Official], division: str) -> Iterator[tuple[Official, Official]]:
    """Yield the pairs of ranked results of one board."""
    for one, other in itertools.combinations(results, 2):
        boards = {(each.score.benchmark, each.score.version) for each in (one, other)}
        ranked = all(standing_of(each)[0] == "ranked" for each in (one, other))
        if ranked and len(boards) == 1 and one.division == other.division == division:
            yield one, other


def _in_window(result: Official) -> list[float]:
    """Return the times of the runs of MLPerf's window that reached the target."""
    runs = sorted(result.score.completed, key=lambda run: run.began_ms)
    times_s = [run.time_to_train_s for run in runs]
    window = median_window(times_s, result.score.required_runs or 0, result.score.drops)
    return [times_s[at] for at in window if runs[at].completion == "reached"]


def test_the_pairs_that_a_window_of_five_left_undecided_are_decided(
    published: list[Official],
) -> None:
    pairs = list(_pairs(published, "open"))
    if len(pairs) != 56:
        pytest.skip("the submissions are others than those that the review counted")
    by_window, by_all, lost = set(), set(), set()
    for nth, (one, other) in enumerate(pairs):
        test = welch(estimate(_in_window(one)), estimate(_in_window(other)))
        first, second = (
            estimate([run.least_s for run in each.score.completed if run.completion == "reached"])
            for each in (one, other)
        )
        everything = welch(first, second)
        if test is not None and test.p_value < 0.05:
            by_window.add(nth)
        if decide(one, other).verdict in {"faster", "slower"}:
            by_all.add(nth)
        if everything is not None and everything.p_value < 0.05 and nth not in by_window:
            lost.add(nth)

    assert (len(by_window), len(by_all)) == (32, 41)
    assert len(lost) == 12
    assert lost <= by_all


def test_every_completed_run_of_a_published_result_counts(published: list[Official]) -> None:
    for result in published:
        score = result.score
        assert [run.number for run in score.compared] == [run.number for run in score.completed]
        assert all(run.counts for run in score.completed)


def test_interval_p_value_verdict_and_places_never_contradict(published: list[Official]) -> None:
    for division in ("open", "closed"):
        for one, other in _pairs(published, division):
            decision = decide(one, other)
            assert decision.test is not None
            apart = decision.verdict in {"faster", "slower"}
            assert (decision.test.p_value < 0.05) is apart
            interval = decision.interval
            assert interval is not None
            assert (interval.low <= 1 <= interval.high) is not apart
            assert decision.ratio is not None
            assert interval.low <= decision.ratio <= interval.high


def test_places_count_the_verdicts_of_all_pairs(published: list[Official]) -> None:
    for one in (each for each in published if each.place):
        board = [each for each in _on_board(published, one) if each.place]
        verdicts = [decide(one, each).verdict for each in board]
        assert one.place is not None
        assert one.place.best == 1 + verdicts.count("faster")
        assert one.place.worst == len(board) - verdicts.count("slower")


def test_compare_board_and_methods_page_give_one_ratio_and_one_p(
    published: list[Official],
) -> None:
    page = (ROOT / "reports" / "index.html").read_text()
    table = (ROOT / "studies" / "methods" / "tables.md").read_text()
    rows = [line.split(" | ") for line in table.splitlines()]
    for task in ("bert/laptop", "vit/laptop"):
        one, other = (
            next(
                each
                for each in published
                if each.score.benchmark == task and each.score.system.endswith(f"-{method}")
            )
            for method in ("synchronous", "int8-links")
        )
        answer = compare(one, other).as_json()
        decision = decide(one, other)
        (row,) = (row for row in rows if task in row[0] and row[1].startswith("int8 links"))
        assert decision.ratio == answer["ratio"]
        assert decision.test is not None
        assert decision.test.p_value == answer["p_value"]
        assert row[5].startswith(f"{answer['ratio']:.2f} ({answer['ratio_low']:.2f} to ")
        assert row[6] == f"{answer['p_value']:.2g}"
        first = next(each for each in _on_board(published, one) if each.place)
        shown = decide(first, other)
        assert shown.test is not None
        p = re.escape(p_value(shown.test.p_value)).replace("<", "&lt;")
        cell = rf"{shown.ratio:.2f}<small>{shown.verdict}, {p}</small>"
        assert re.search(cell, page)


def _on_board(results: list[Official], of: Official) -> list[Official]:
    """Return the results on the board of a result, the fastest first."""
    mine = (of.score.benchmark, of.score.version, of.division)
    of_board = [
        each
        for each in results
        if (each.score.benchmark, each.score.version, each.division) == mine
    ]
    return sorted(of_board, key=lambda each: each.score.mean_s or float("inf"))
