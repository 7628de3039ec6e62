from __future__ import annotations

import pytest

from suite.report.rank import rank_ranges
from suite.scores.interval import Interval


@pytest.mark.parametrize(
    ("ends", "ranks"),
    [
        ([], []),
        ([(1, 2)], ["1"]),
        ([(1, 2), (3, 4), (5, 6)], ["1", "2", "3"]),
        ([(1, 4), (2, 5), (3, 6)], ["1–3", "1–3", "1–3"]),  # noqa: RUF001
        ([(1, 3), (2, 5), (4, 6)], ["1–2", "1–3", "2–3"]),  # noqa: RUF001
        ([(5, 6), (1, 2), (1, 2)], ["3", "1–2", "1–2"]),  # noqa: RUF001
        ([(1, 2), (2, 3)], ["1–2", "1–2"]),  # noqa: RUF001
    ],
)
def test_results_whose_intervals_overlap_share_ranks(
    ends: list[tuple[float, float]], ranks: list[str]
) -> None:
    assert [str(rank) for rank in rank_ranges([Interval(*pair) for pair in ends])] == ranks


def test_nothing_is_certain_without_an_interval() -> None:
    ranks = rank_ranges([Interval(1, 2), None, Interval(3, 4)])

    assert [(rank.best, rank.worst) for rank in ranks] == [(1, 2), (1, 3), (2, 3)]
