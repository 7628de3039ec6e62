from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from hybridperf.log.package import read_result
from hybridperf.score.compare import compare
from hybridperf.score.official import Official, official_of
from hybridperf.score.ranking import decide, standing_of, with_places
from hybridperf.score.validity import Judgement, Validity
from tests.packages import EPOCHS, VALID, write_result

if TYPE_CHECKING:
    from pathlib import Path


def _official(root: Path, **how: Any) -> Official:
    return official_of(read_result(write_result(root, **how)), VALID)


@pytest.mark.parametrize(
    ("offsets", "places"),
    [
        ([], []),
        ([0], ["1"]),
        ([0, 10, 20], ["1", "2", "3"]),
        ([0, 0.1, 0.2], ["1–3", "1–3", "1–3"]),  # noqa: RUF001 - a range takes an en dash
        ([0, 2, 4], ["1–2", "1–3", "2–3"]),  # noqa: RUF001 - as above
        ([10, 0, 0], ["3", "1–2", "1–2"]),  # noqa: RUF001 - as above
    ],
)
def test_results_that_tie_share_places(
    tmp_path: Path, offsets: list[float], places: list[str]
) -> None:
    results = [
        _official(tmp_path / f"{nth}", times_s=[30 + offset + run for run in range(5)])
        for nth, offset in enumerate(offsets)
    ]

    placed = with_places(results)

    assert [str(each.place) for each in placed] == places
    for (one, first), (other, second) in itertools.combinations(
        zip(placed, results, strict=True), 2
    ):
        apart = compare(first, second).decision.verdict in {"faster", "slower"}
        assert one.place is not None
        assert other.place is not None
        if not apart:
            assert max(one.place.best, other.place.best) <= min(one.place.worst, other.place.worst)


def test_places_are_within_a_benchmark_and_a_division(tmp_path: Path) -> None:
    results = [_official(tmp_path / "a"), _official(tmp_path / "b", division="open")]

    assert [str(each.place) for each in with_places(results)] == ["1", "1"]


def test_a_missed_run_does_not_help_the_result_that_it_is_of(tmp_path: Path) -> None:
    slow = _official(tmp_path / "a", times_s=[14.0, 14.1, 14.2, 14.3, 14.4])
    fast = _official(tmp_path / "b", times_s=[13.0, 13.1, 13.2, 13.3, 60.0], missed=[4])
    faster = _official(tmp_path / "c", times_s=[1.0, 1.1, 1.2, 1.3, 3.0], missed=[4])

    assert decide(slow, fast).test is not None
    assert decide(slow, fast).verdict == "tie"
    assert decide(fast, slow).verdict == "tie"
    assert decide(slow, faster).verdict == "faster"
    assert decide(faster, slow).verdict == "slower"


def test_a_result_with_one_missed_run_is_behind_those_that_are_faster(tmp_path: Path) -> None:
    missed = _official(tmp_path / "m", times_s=[20.0, 20.1, 20.2, 20.3, 21.0], missed=[4])
    others = [
        _official(tmp_path / f"{nth}", times_s=[start + run / 10 for run in range(5)])
        for nth, start in enumerate([10.0, 15.0, 40.0])
    ]

    places = [str(each.place) for each in with_places([missed, *others])]

    assert places == ["3", "1", "2", "4"]


def test_who_has_no_place_is_told_why(tmp_path: Path) -> None:
    few = _official(tmp_path / "few", times_s=[1.0, 2.0, 3.0])
    none = _official(tmp_path / "none", times_s=[])
    two = read_result(write_result(tmp_path / "missed", missed=[0, 1]))
    missed = official_of(two, Validity(Judgement.MISSED, "2: 0, 1"))
    fast = _official(tmp_path / "fast", epochs=EPOCHS - 4)

    assert standing_of(few) == ("provisional", "3 of 5 runs")
    assert standing_of(none)[0] == "provisional"
    assert standing_of(missed) == ("did not converge", "more than one run missed the target")
    standing, why = standing_of(fast)
    assert standing == "too fast"
    assert why.startswith("converges faster than the reference allows")
    assert [each.place for each in with_places([few, none, missed, fast])] == [None] * 4
    assert f"B: no official score and no place: {why}" in compare(few, fast).notes
